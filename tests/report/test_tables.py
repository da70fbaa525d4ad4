"""The main table: order, best marks, missing pipelines, and its three file formats."""

import csv
import io
import re
import shutil
import subprocess

import pytest

from lightning_calib.calibrators.pipeline import PAPER_BLOCKS, PAPER_PIPELINES
from lightning_calib.experiment.results import Results
from lightning_calib.kit.tables import MISSING, Row, Table, latex_escape
from lightning_calib.report.main_table import bounded, interval_legend, main_table, markdown_file


def score(mean, spread=0.01):
    return {"mean": mean, "low": mean - spread, "high": mean + spread}


def small_table(**options) -> Table:
    scores = {
        "identity(z)": {"nll": score(0.50), "dice": score(0.8001), "flip": score(0.0, 0.0)},
        "ms(z)": {"nll": score(0.3001), "dice": score(0.7), "flip": score(0.02)},
        "dc(z)": {"nll": score(0.3004), "dice": score(0.75), "flip": score(0.03)},
        "ts(z)": {"nll": score(0.40), "dice": score(0.8004), "flip": score(0.0, 0.0)},
    }
    return main_table("toy_set & more", list(scores), scores, **options)


def cell(table: Table, row: Row, key: str):
    return row.cells[[column.key for column in table.columns].index(key)]


def marked(table: Table, key: str) -> list[str]:
    return [row.cells[0].text for row in table.rows if cell(table, row, key).best]


def blocks(table: Table) -> dict[str, list[Row]]:
    found = {}
    for row in table.rows:
        found.setdefault(row.block[1], []).append(row)
    return found


def test_rows_stand_in_the_blocks_of_the_paper():
    table = main_table("toy", list(reversed(PAPER_PIPELINES)), {})
    assert [row.cells[0].text for row in table.rows if not row.again] == list(PAPER_PIPELINES)
    assert {letter: len(rows) for letter, rows in blocks(table).items()} == {
        letter: len(names) + (letter == "f") for letter, names in PAPER_BLOCKS.items()
    }


def test_dirichlet_on_mean_logits_is_listed_again_beside_its_twin():
    table = main_table("toy", PAPER_PIPELINES, {})
    assert [row.cells[0].text for row in blocks(table)["f"]] == ["dc(p)", "dc(z)"]
    assert [row.again for row in blocks(table)["f"]] == [False, True]


def test_pipelines_outside_the_paper_come_last():
    table = main_table("toy", ["vs(z)", "ts(z)"], {})
    assert [(row.cells[0].text, row.block[1]) for row in table.rows] == [("ts(z)", "e"), ("vs(z)", "g")]


def test_bold_is_what_leads_beyond_noise_and_nothing_else():
    table = small_table(leading={"nll": ["dc(z)"]})
    assert marked(table, "nll") == ["dc(z)"]
    assert marked(table, "dice") == []
    assert "Bold: better than the uncalibrated ensemble beyond noise" in table.caption
    assert "Bold" not in small_table().caption


def test_flips_are_not_applicable_without_a_calibrator_and_exactly_zero_where_guaranteed():
    table = small_table()
    texts = {row.cells[0].text: cell(table, row, "flip").text for row in table.rows}
    assert texts["identity(z)"] == MISSING
    assert texts["ts(z)"] == "0"


def test_missing_pipelines_keep_their_row_and_say_why():
    table = main_table("toy", ["ts(z)", "ms(z)"], {"ts(z)": {"nll": score(0.4)}}, {"ms(z)": "repeat 0: it broke"})
    row = next(row for row in table.rows if row.cells[0].text == "ms(z)")
    assert row.note == "repeat 0: it broke"
    assert cell(table, row, "nll").text == MISSING
    assert "it broke" in markdown_file("toy", table, "")
    assert "it broke" in table.to_csv()


def test_csv_holds_the_summary_in_full_precision(calibration):
    results = Results(calibration)
    scores = {name: entry["metrics"] for name, entry in results.summary["pipelines"].items()}
    rows = list(csv.DictReader(io.StringIO(main_table("toy", results.pipelines, scores).to_csv())))
    assert [row["pipeline"] for row in rows] == list(results.pipelines)
    for row in rows:
        expected = scores.get(row["pipeline"])
        assert (row["nll"] == "") == (expected is None)
        if expected:
            assert float(row["nll"]) == expected["nll"]["mean"]
            assert float(row["ece_high"]) == expected["ece"]["high"]
            assert float(row["ace_low"]) == expected["ace"]["low"]


def test_markdown_rows_have_as_many_cells_as_the_heading():
    lines = [line for line in markdown_file("toy", small_table(), "").splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert len(cells) == 1
    assert "| `ms(z)` × | **0.300** |" in markdown_file("toy", small_table(leading={"nll": ["ms(z)"]}), "")  # noqa: RUF001  # the sign for "not invariant"


@pytest.mark.parametrize("intervals", [False, True])
def test_latex_rows_have_as_many_cells_as_columns(intervals):
    text = small_table().to_latex(intervals)
    columns = len(re.search(r"\\begin\{tabular\}\{@\{\}(l[c]+)@\{\}\}", text)[1])
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(rows) == 4
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {columns}
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
@pytest.mark.parametrize("name", ["table.tex", "table_intervals.tex"])
def test_latex_compiles(name, report, tmp_path):
    source = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + "\n"
    source += (report.parent / name).read_text(encoding="utf-8") + small_table().to_latex() + r"\end{document}"
    (tmp_path / "main.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_latex_escape_leaves_no_special_character_bare():
    assert latex_escape("a_b{c}~^\\#5%&$") == (r"a\_b\{c\}\textasciitilde{}\textasciicircum{}\textbackslash{}\#5\%\&\$")


def test_the_terminal_gets_aligned_columns_and_blocks():
    lines = small_table(leading={"nll": ["ms(z)", "dc(z)"]}).to_text().splitlines()
    assert lines[0].split() == ["Pipeline", "NLL", "↓", "Dice", "(%)", "↑", "Flips", "(%)", "↓"]
    assert lines[1] == "(a) Uncalibrated baselines"
    rows = [line for line in lines[1:-1] if not line.startswith("(")]
    assert len({line.rstrip("* ").index("0.") for line in rows}) == 1
    assert [line.split()[0] for line in rows if "*" in line] == ["ms(z)", "dc(z)"]


def test_a_legend_names_what_the_brackets_are():
    scores = {"ts(z)": {"nll": score(0.4), "ace": {"mean": 0.1, "min": 0.05, "max": 0.2}}}
    told = interval_legend(scores)
    assert told == "NLL: 95 % interval, cases drawn as wholes; ACE: smallest and largest repeat."
    text = markdown_file("toy", main_table("toy", ["ts(z)"], scores), told)
    assert "[0.050, 0.200]" in text
    assert told in text


def test_the_paper_has_its_two_level_intervals_in_the_latex_table(calibration, report):
    entry = Results(calibration).summary["pipelines"]["ts(z)"]
    ours, paper = bounded(entry, "clustered"), bounded(entry, "two_level")
    assert (ours["ece"]["low"], ours["ace"]["low"]) == (entry["metrics"]["ece"]["low"], entry["metrics"]["ace"]["low"])
    assert paper["ece"] == entry["two_level"]["ece"] != ours["ece"]
    assert paper["ace"].keys() == {"mean", "min", "max"}
    text = (report.parent / "table_intervals.tex").read_text(encoding="utf-8")
    assert f"[{paper['dice']['low'] * 100:.1f}, {paper['dice']['high'] * 100:.1f}]" in text
    assert "two-level bootstrap" in text
    assert "two-level" not in (report.parent / "table.md").read_text(encoding="utf-8")


def test_columns_of_one_form_stay_out_of_the_others():
    table = small_table()
    assert "translation_invariant" in table.to_csv().splitlines()[0]
    assert "TI" not in table.grid().splitlines()[0]
    assert [table.columns[n].heading for n in table.shown("html")][:3] == ["Pipeline", "TI", "keeps"]
