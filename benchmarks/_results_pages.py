"""What the pages of docs/results say, out of finished runs: blocks between marks, which a script writes anew.

A page holds ``<!-- NAME -->`` and ``<!-- end of NAME -->``; what is between them is replaced, all else stays.
"""

import csv
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from _measure import markdown
from _results_journal import Entry, Journal
from _results_plan import DataSet

from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import read_json, write_text
from lightning_calib.report.numbers import format_seconds

PAPER_TABLE = Path(__file__).with_name("paper_table.csv")
LIKE = {"massroads_crops": "roadseg", "hippocampus": "brats", "camvid": "cityscapes"}  # the paper's nearest data set
CONSTRAINTS: tuple[Preserve, ...] = ("order", "argmax", "none")
FIGURES = (
    "answer",
    "reliability",
    "confidence",
    "comparisons",
    "selection",
    "selection-gains",
    "triage",
    "shift",
)
STAGE_NAMES = {
    "train": "training",
    "predict": "prediction",
    "run": "protocol and selection by groups",
    "study": "studies and report",
    "decide": "decisions",
    "publish": "pooled copy of the outputs",
    "peers": "other libraries",
}


def fill(page: str, blocks: dict[str, str]) -> str:
    """A page with its blocks written anew.

    Raises:
        ValueError: where a block has no place on the page.
    """
    for name, text in blocks.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"the page lacks {begin} or {end}")
        page = f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"
    return page


def dataset_blocks(dataset: DataSet, run: Path, journal: Journal, pictures: Path) -> dict[str, str]:
    """All blocks of a data set's page; figures are copied to ``pictures``."""
    results = Results(run)
    return {
        "commands": commands(journal),
        "times": times(journal),
        "choice": choice(results.summary),
        "table": (run / "report" / "table.md").read_text(encoding="utf-8").partition("## With intervals")[2],
        "comparisons": folded(
            "All matched comparisons", (run / "report" / "comparisons.md").read_text(encoding="utf-8")
        ),
        "figures": figures(run / "report" / "figures", pictures),
        "studies": studies(run / "report" / "studies"),
        "decisions": decisions(dataset, journal),
        "peers": table_in(journal.text("peers")),
        "published": fenced(journal.text("publish")),
    } | ({"random": fenced(journal.text("show-random"))} if dataset.near_copies else {})


def commands(journal: Journal) -> str:
    """Every command as it was run, with ``$LIGHTNING_CALIB_DATA`` in place of the folder of data."""
    lines = [shown(entry.line) for entry in journal.of(tuple(STAGE_NAMES))]
    return folded("Every command", fenced("\n".join(f"python {line}" for line in lines), "bash"))


def shown(line: Sequence[str]) -> str:
    """A command as a reader would type it."""
    texts = []
    for before, text in zip(("", *line), line, strict=False):
        if before == "--data.init_args.root":
            text = f"$LIGHTNING_CALIB_DATA/{Path(text).name}"
        elif "/" in text and (found := re.search(r"(?:^|/)runs(?:/|$)", text)):
            text = text[found.start() :].lstrip("/")
        texts.append(text if text.startswith("$") else shlex.quote(text))
    return " ".join(texts)


def times(journal: Journal) -> str:
    """What each stage took, and on what."""
    rows = [_time_row(name, journal.of([stage])) for stage, name in STAGE_NAMES.items() if journal.of([stage])]
    header = ("stage", "wall clock", "processor time", "memory of the largest process")
    machines = sorted({entry.machine for entry in journal.of(tuple(STAGE_NAMES))})
    return f"{markdown(header, rows)}\n\nOn {'; '.join(machines)}."


def _time_row(name: str, entries: Sequence[Entry]) -> list[str]:
    seconds = [format_seconds(sum(getattr(e, key) for e in entries)) for key in ("seconds", "processor_seconds")]
    return [name, *seconds, f"{max(entry.gibibytes for entry in entries):.1f} GiB"]


def choice(summary: dict[str, Any]) -> str:
    """What `val` would deploy and what groups do, with what each brought on test, by what must be kept."""
    header = (
        "must be kept",
        "chosen by `val`",
        "NLL on test",
        "chosen by groups",
        "in the repeats",
        "NLL saved on unseen groups",
    )
    rows = []
    for preserve in CONSTRAINTS:
        val, groups = summary["recommendation"].get(preserve), (summary["selection"] or {}).get(preserve)
        if val is None or groups is None:
            continue
        rows.append(
            [
                preserve,
                f"`{val['pipeline']}`",
                _interval(val["test"]["nll"]),
                f"`{groups['pipeline']}`",
                ", ".join(f"`{name}`" for name in groups["chosen"]),
                _interval(groups["gain"], "+"),
            ]
        )
    return markdown(header, rows)


def figures(source: Path, pictures: Path) -> str:
    """The figures of the report that the page shows, copied; a caption each from their names."""
    pictures.mkdir(parents=True, exist_ok=True)
    shown = [name for name in FIGURES if (source / f"{name}.png").is_file()]
    for name in shown:
        shutil.copyfile(source / f"{name}.png", pictures / f"{name}.png")
    titles = {name: name.replace("-", " ").capitalize() for name in shown}
    return "\n\n".join(f"![{titles[name]}](../images/{pictures.name}/{name}.png)" for name in shown)


def studies(folder: Path) -> str:
    """Every table of every study; that of the claims open, the others folded."""
    claims = folder / "claims.md"
    found = [path for path in sorted(folder.glob("*.md")) if path != claims]
    head = [claims.read_text(encoding="utf-8")] if claims.is_file() else []
    return "\n\n".join(
        [*head, *(folded(path.stem.replace("-", " "), path.read_text(encoding="utf-8")) for path in found)]
    )


def decisions(dataset: DataSet, journal: Journal) -> str:
    """What the commands of decisions printed."""
    names = [name for name, entry in journal.entries.items() if entry.stage == "decide" and name != "deploy"]
    return "\n\n".join(
        f"`{name.replace('-', ' ')}`\n\n{fenced(journal.text(name))}" for name in names if journal.text(name)
    )


def claim_rows(runs: dict[str, Path]) -> str:
    """The paper's claims, a column a data set: what most comparisons say, and how many of them."""
    told: dict[str, dict[str, str]] = {}
    for name, run in runs.items():
        for claim in read_json(run / "calibration" / "studies" / "claims" / "study.json")["claims"]:
            count = claim["counts"]["seen"]
            told.setdefault(claim["text"], {})[name] = f"{claim['outcome']}, {count} of {claim['tested']}"
    return markdown(
        ("claim", *runs), [[text, *(found.get(name, "-") for name in runs)] for text, found in told.items()]
    )


def summary_rows(runs: dict[str, Path]) -> str:
    """A row a data set: what it is, what pooling and calibration make of it, what is deployed."""
    header = (
        "data set",
        "classes",
        "members",
        "test cases a repeat",
        "Dice (%)",
        "NLL of `identity(p)`",
        "chosen by groups",
        "saves",
    )
    return markdown(header, [_summary_row(name, Results(run)) for name, run in runs.items()])


def _summary_row(name: str, results: Results) -> list[str]:
    plain = results.summary["pipelines"]["identity(p)"]["metrics"]
    groups = results.summary["selection"]["order"]
    facts = [str(results.dataset[key]) for key in ("num_classes", "num_members")]
    scores = [f"{100 * plain['dice']['mean']:.1f}", f"{plain['nll']['mean']:.4f}"]
    page = "massroads" if name == "massroads_crops" else name
    chosen = [f"`{groups['pipeline']}`", _interval(groups["gain"], "+")]
    return [f"[{name}]({page}.md)", *facts, str(len(results.test_cases(0))), *scores, *chosen]


def _interval(found: dict[str, float] | None, sign: Literal["", "+"] = "") -> str:
    """A mean with its bounds; a dash where there is none."""
    if found is None:
        return "-"
    mean, low, high = (f"{found[key]:{sign}.4f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def beside_the_paper(runs: dict[str, Path], metric: Literal["nll", "ece", "ba_ece", "ace"] = "nll") -> str:
    """A score of every pipeline as a multiple of that of `identity(p)`: the paper's data set, and the one like it."""
    with PAPER_TABLE.open(encoding="utf-8") as file:
        paper = {row["pipeline"]: row for row in csv.DictReader(file)}
    held = {name: Results(run).summary["pipelines"] for name, run in runs.items() if name in LIKE}
    header = ["pipeline", *(text for name in held for text in (f"{LIKE[name]} (paper)", name))]
    rows = []
    for pipeline, printed in paper.items():
        cells = []
        for name, ours in held.items():
            theirs = {key: float(paper[key][f"{LIKE[name]}_{metric}"]) for key in (pipeline, "identity(p)")}
            cells.append(_ratio(theirs[pipeline], theirs["identity(p)"]))
            mean = {key: ours[key]["metrics"][metric]["mean"] for key in (pipeline, "identity(p)") if key in ours}
            cells.append(_ratio(mean.get(pipeline), mean["identity(p)"]))
        rows.append([f"`{printed['pipeline']}`", *cells])
    return markdown(header, rows)


def _ratio(value: float | None, plain: float) -> str:
    return "-" if value is None else f"{value / plain:.2f}"


def table_in(text: str) -> str:
    """The Markdown table that a command printed."""
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def folded(title: str, text: str) -> str:
    """A part that readers open."""
    return f"<details><summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def fenced(text: str, language: str = "text") -> str:
    """Text as it was printed."""
    return f"```{language}\n{text.strip()}\n```" if text.strip() else ""


def write_page(page: Path, blocks: Callable[[], dict[str, str]]) -> None:
    """Fill a page of the docs.

    Raises:
        ValueError: where the page has no place for a block.
    """
    try:
        filled = fill(page.read_text(encoding="utf-8"), blocks())
    except ValueError as error:
        raise ValueError(f"{page}: {error}; nuclei.md has the marks of all blocks of a data set") from error
    write_text(page, filled)
