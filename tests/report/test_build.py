"""The report as files: complete, self-contained, escaped, the same every time, and there when inputs are missing."""

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from lightning_calib.cli.calibrate import main
from lightning_calib.experiment import layout
from lightning_calib.experiment.results import Results
from lightning_calib.kit.checksums import CHECKSUMS
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.report.build import build_report
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.sections import SECTIONS
from lightning_calib.report.sections.fits import certificates
from tests.experiment.synthetic import CLASSES, member_logits, write_outputs, write_results

FEW = ("identity(p0)", "identity(z)", "ms(z)", "dc(z)", "ts(z)")
FIGURES = {
    *("answer", "classes", "worst", "risk"),
    *("comparisons", "reliability", "bands", "confidence", "flips", "free-energy"),
    *("temperatures", "matrices", "experts", "temperature-maps"),
}
HOSTILE = "<script>window.hacked=1</script>&\"'"


class Page(HTMLParser):
    """Texts of the sections, their notices, and every address that the page mentions."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self._section = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self._section = found["id"] if tag == "section" else self._section
        self.addresses += [found[key] for key in ("src", "href", "xlink:href", "srcset", "action") if key in found]

    def handle_data(self, data):
        self.sections[self._section] = self.sections.get(self._section, "") + data


def read(path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_every_section_is_there_with_its_pictures(report, page):
    parsed = Page(page)
    expected = [entry.key for entry in SECTIONS if entry.key != "selection"]  # the run did not select by groups
    assert [key for key in parsed.sections if key] == [*expected, "words"]
    assert {path.stem for path in (report.parent / "figures").glob("*.png")} == FIGURES
    assert page.count("<figure ") == len(FIGURES)
    assert "could not be read" not in page
    for name in ("table.md", "table.tex", "table_intervals.tex", "table.csv", "comparisons.md", "comparisons.tex"):
        assert (report.parent / name).stat().st_size > 500


def test_the_page_says_what_the_groups_of_the_parts_allow_to_conclude(page):
    assert "groups in cal / val / test: group" in page
    after = page.split("groups in cal / val / test: group")[1]
    assert "No group is in two parts" in after or "Cases of one group are in several parts" in after


def test_nothing_is_asked_of_the_network(page):
    parsed = Page(page)
    assert all(address.startswith(("#", "data:")) for address in parsed.addresses)
    assert not {"link", "iframe", "img", "object"} & {tag for tag in parsed.tags if tag != "link"}
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_the_page_is_small(page):
    assert len(page.encode()) < 1_000_000


def test_the_headline_holds_the_numbers_of_the_summary(calibration, page):
    choice = Results(calibration).summary["recommendation"]["order"]
    text = Page(page).sections["answer"]
    assert f"Deploy {choice['pipeline']}." in text
    assert f"\N{RIGHTWARDS ARROW} {choice['test']['ece']['mean']:.3f}" in text
    assert f"\N{RIGHTWARDS ARROW} {choice['test']['nll']['mean']:.3f}" in text
    assert f"{choice['votes']} of 2 repeats" in text


def test_the_sentence_is_about_the_voxels_that_are_90_percent_certain(calibration, page):
    results = Results(calibration)
    name, right = results.summary["recommendation"]["order"]["pipeline"], []
    for pipeline in (results.summary["uncalibrated"], name):
        counts = sum(
            np.array([results.bin_table(r, pipeline).voxels.numpy(), results.bin_table(r, pipeline).correct.numpy()])
            for r in results.repeats
        )[:, 520:560]  # confidences from 0.8667 to 0.9333
        right.append(f"{100 * counts[1].sum() / counts[0].sum():.0f}\xa0% (")
    text = Page(page).sections["answer"]
    assert "Of the voxels that the ensemble calls 90\xa0% certain, " + right[0] in text
    assert f"were right; calibrated, {right[1]}" in text


def test_the_gain_is_the_mean_difference_to_the_better_of_the_uncalibrated(calibration, page):
    results = Results(calibration)
    name = results.summary["recommendation"]["order"]["pipeline"]
    plain = min(("identity(p)", "identity(z)"), key=lambda n: np.mean([s.mean() for s in results.scores(n, "nll")]))
    before, after = (results.scores(n, "ece") for n in (plain, name))
    change = np.mean([np.mean(a - b) for a, b in zip(after, before, strict=True)])
    assert f"\N{MINUS SIGN}{-change:.3f} [" in Page(page).sections["answer"]


def test_cards_stand_in_the_order_in_which_scores_changed(calibration, page):
    metrics = {name: entry["metrics"] for name, entry in Results(calibration).summary["pipelines"].items()}
    name, plain = (Results(calibration).summary[key] for key in ("recommendation", "uncalibrated"))
    after, before = metrics[name["order"]["pipeline"]], metrics[plain]
    labels = {"NLL": "nll", "ECE": "ece", "BA-ECE": "ba_ece", "ACE": "ace", "Dice (%)": "dice"}
    shown = re.findall(r'<div class="card [^>]*>\s*<h3><span[^>]*>([^<]*)</span>', page)
    assert set(shown) == {*labels, "Flips (%)"}
    changes = [abs(after[k]["mean"] / before[k]["mean"] - 1) for k in (labels[n] for n in shown if n in labels)]
    assert changes == sorted(changes, reverse=True)


def test_the_next_commands_are_there_to_copy(calibration, page):
    lines = re.findall(r'data-copy="([^"]*)"', page)
    assert [line.split(" calibrate ")[1].split()[0] for line in lines] == ["deploy", "apply", "doctor"]
    assert f"deploy --calibration {calibration}" in lines[0]


def test_bars_and_verdicts_of_the_page_agree(page):
    rows = re.findall(r'<td class="number">\[(\S+), (\S+)\]</td>.*?<span class="badge ([\w-]+)"', page, re.DOTALL)
    assert rows
    for low, high, verdict in rows:
        ends = [float(re.sub("&[lg]t;", "", end.replace("\N{MINUS SIGN}", "-"))) for end in (low, high)]
        assert (ends[0] <= 0 <= ends[1]) == (verdict == "within-noise")


def test_results_of_an_earlier_version_have_a_page(damaged):
    for name in (layout.CASE_BINS, layout.CLASSES, layout.CLASS_BINS):
        (damaged / "calibration" / name).unlink()
    page = make(damaged)
    assert "Deploy ts(z). " in page.sections["answer"]
    assert "of an earlier version" in page.sections["by-class"]
    assert "could not be read" not in "".join(page.sections.values())


def test_failed_pipelines_are_named_with_their_errors(page):
    text = Page(page).sections["scores"]
    assert "cdc(p): no scores in repeat 0 and 1: RuntimeError: the objective is NaN" in text
    assert "ms_c(z): no scores in repeat 1: RuntimeError" in text
    assert "repeat 1: RuntimeError" in Page(page).sections["fits"]


def test_the_same_results_give_the_same_bytes(store, calibration, report, page, tmp_path):
    again = build_report(calibration, store.path, tmp_path / "again")
    assert again.read_text(encoding="utf-8") == page
    for name in ("table.md", "table.csv", "figures/flips.png"):
        assert (tmp_path / "again" / name).read_bytes() == (report.parent / name).read_bytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with a small run, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("small")
    store = write_outputs(folder / "outputs", cases=6)
    write_results(folder / "calibration", store, pipelines=FEW, repeats=1)
    return folder


@pytest.fixture
def damaged(small, tmp_path):
    shutil.copytree(small, tmp_path / "run")
    for noted in (tmp_path / "run").rglob(CHECKSUMS):  # what is changed here is to be met, not to be noticed before
        noted.unlink()
    settings = tmp_path / "run" / "calibration" / layout.SETTINGS
    facts = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps(facts | {"outputs": str(tmp_path / "run" / "outputs")}), encoding="utf-8")
    return tmp_path / "run"


def make(folder) -> Page:
    return read(build_report(folder / "calibration", None, folder / "report"))


def test_without_outputs_the_maps_say_so_and_the_rest_is_there(damaged):
    make(damaged)
    figures = damaged / "report" / "figures"
    (figures / "my own.png").touch()
    assert (figures / "flips.png").is_file()
    shutil.rmtree(damaged / "outputs")
    page = make(damaged)
    assert not (figures / "flips.png").exists()  # it would be taken for one of this report
    assert (figures / "my own.png").exists()
    for key in ("confidence-maps", "free-energy", "flip-maps"):
        assert "no output store at" in page.sections[key]
        assert "--outputs" in page.sections[key]
    assert "Deploy ts(z)." in page.sections["answer"]
    assert (damaged / "report" / "figures" / "reliability.png").is_file()


def test_pictures_are_those_of_as_many_members_as_the_run_took(damaged):
    settings = damaged / "calibration" / layout.SETTINGS
    facts = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps(facts | {"members": 1}), encoding="utf-8")
    inputs = Inputs.open(damaged / "calibration", None)
    pooled = inputs.cases("z").read("case_000")[0]
    assert pooled.equal(OutputStore(damaged / "outputs")["case_000"].logits[0])


def test_an_unfinished_run_still_has_a_page(damaged):
    for name in (layout.SUMMARY, layout.CASES, layout.BINS, layout.BANDS):
        (damaged / "calibration" / name).unlink()
    page = make(damaged)
    assert "the run has not finished" in page.sections["answer"]
    assert "the run has not finished" in page.sections["scores"]
    assert "newton" in page.sections["fits"]
    assert "All settings" in page.sections["provenance"]
    assert not (damaged / "report" / "table.csv").exists()


def test_a_damaged_table_and_a_lost_calibrator_cost_their_sections_only(damaged):
    (damaged / "calibration" / layout.BINS).write_text("not,a,table\n", encoding="utf-8")
    for path in damaged.rglob("ts-z/calibrator.safetensors"):
        path.unlink()
    page = make(damaged)
    assert "could not be read" in page.sections["reliability"]
    assert "bins.csv" in page.sections["reliability"]
    assert "no fitted calibrator of ts(z)" in page.sections["confidence-maps"]
    assert "Deploy ts(z)." in page.sections["answer"]


def test_a_run_in_which_everything_failed_has_a_page(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=6)
    write_results(tmp_path / "calibration", store, pipelines=FEW, repeats=1, fail=[(0, name) for name in FEW])
    page = make(tmp_path)
    assert "none is recommended" in page.sections["answer"]
    assert "ts(z): no scores in repeat 0" in page.sections["scores"]
    assert "No pipeline has scores" in page.sections["reliability"]


def test_a_run_without_the_uncalibrated_ensemble_says_so(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=6)
    write_results(tmp_path / "calibration", store, pipelines=("ts(z)",), repeats=1)
    page = make(tmp_path)
    assert "no uncalibrated ensemble" in page.sections["answer"]
    assert "No matched pair" in page.sections["comparisons"]
    assert "did not" not in page.sections["flip-maps"]
    assert "No pipeline of this run changed" in page.sections["flip-maps"]


def test_without_a_calibrator_worth_having_the_ensemble_stays_as_it_is(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=6)
    write_results(tmp_path / "calibration", store, pipelines=("identity(z)",), repeats=1)
    page = make(tmp_path)
    assert "Deploy identity(z)." in page.sections["answer"]
    assert "leave it so" in page.sections["answer"]
    assert "could not be read" not in "".join(page.sections.values())


def test_names_and_errors_are_text_never_markup(damaged):
    settings = damaged / "calibration" / layout.SETTINGS
    facts = json.loads(settings.read_text(encoding="utf-8"))
    facts["dataset"] |= {"name": HOSTILE, "class_names": [HOSTILE, "$a_1$", "<b>", "c"]}
    settings.write_text(json.dumps(facts), encoding="utf-8")
    fit = damaged / "calibration" / "repeats" / "0" / "ms-z" / layout.FIT
    fit.write_text(json.dumps({"status": "failed", "error": HOSTILE, "pipeline": "ms(z)"}), encoding="utf-8")
    page = make(damaged)
    assert page.tags.count("script") == 1
    assert HOSTILE in page.sections[""]
    assert HOSTILE in page.sections["fits"]
    assert HOSTILE in page.sections["learned"]  # inside a figure


def test_volumes_are_shown_by_their_busiest_slice(tmp_path):
    rng = np.random.default_rng(0)
    writer = OutputWriter(tmp_path / "outputs", "toy", CLASSES, 3, [Member("0"), Member("1")], background=0)
    for n in range(6):
        target = torch.from_numpy(rng.integers(0, 4, (3, 10, 12)))
        writer.write(f"scan_{n}", logits=member_logits(rng, target, 2, 2.5), target=target)
    writer.finish()
    write_results(tmp_path / "calibration", OutputStore(tmp_path / "outputs"), pipelines=FEW, repeats=1)
    page = make(tmp_path)
    assert re.search(r"scan_\d, slice \d", page.sections["confidence-maps"])
    assert "could not be read" not in "".join(page.sections.values())


def test_log_probabilities_have_no_free_energy_to_show(tmp_path):
    rng = np.random.default_rng(0)
    options = {"background": 0, "representation": "log_probs"}
    writer = OutputWriter(tmp_path / "outputs", "toy", CLASSES, 2, [Member("0")], **options)
    for n in range(6):
        target = torch.from_numpy(rng.integers(0, 4, (10, 12)))
        logits = member_logits(rng, target, 1, 2.5)
        writer.write(f"case_{n}", logits=logits.log_softmax(dim=1), target=target)
    writer.finish()
    write_results(tmp_path / "calibration", OutputStore(tmp_path / "outputs"), pipelines=("ts(z)",), repeats=1)
    assert "free energy is 0 everywhere" in make(tmp_path).sections["free-energy"]


def test_the_command_writes_beside_the_calibration_folder(small, capsys):
    assert main(["report", "--calibration", str(small / "calibration"), "--preserve", "none"]) == 0
    assert str(small / "report" / "index.html") in capsys.readouterr().out
    choice = Results(small / "calibration").summary["recommendation"]["none"]["pipeline"]
    assert choice != "ts(z)"
    assert f"Deploy {choice}." in read(small / "report" / "index.html").sections["answer"]


def test_the_command_refuses_a_folder_without_results(tmp_path, capsys):
    assert main(["report", "--calibration", str(tmp_path)]) == 2
    assert "no results there" in capsys.readouterr().err


def test_fits_tell_failures_with_tracebacks_aside_and_trials_that_did_not_help(damaged):
    folder = damaged / "calibration" / "repeats" / "0"
    error = "ValueError: too few voxels\nTraceback (most recent call last):\n  File 'a.py'"
    (folder / "ms-z" / layout.FIT).write_text(json.dumps({"status": "failed", "error": error}), encoding="utf-8")
    kept = json.loads((folder / "dc-z" / layout.FIT).read_text(encoding="utf-8"))
    kept |= {"certificate": {}, "hyperparameters": {}, "val_nll": kept["identity_val_nll"]}
    (folder / "dc-z" / layout.FIT).write_text(json.dumps(kept), encoding="utf-8")
    results = Results(damaged / "calibration")
    section = certificates(Inputs(results, None))
    (table,) = section.tables
    rows = {row.cells[0].text: row for row in table.rows}
    texts = {
        name: {column.heading: cell.text for column, cell in zip(table.columns, row.cells, strict=True)}
        for name, row in rows.items()
    }
    assert rows["ms(z)"].details == (("repeat 0: ValueError: too few voxels", error.split("\n", 1)[1]),)
    assert rows["ms(z)"].note == "repeat 0: ValueError: too few voxels"
    assert texts["dc(z)"]["chosen by the search"] == "no trial was better than no calibration"
    assert texts["ts(z)"]["chosen by the search"] == "lam 0.001, mu 0.001"
    assert texts["ts(z)"]["time"] == "1.2 s"
