"""A report from the files of a run: the page, the tables in three formats, the figures."""

import re
from dataclasses import replace
from pathlib import Path

from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.layout import ResultsError
from lightning_calib.experiment.statistics import IntervalKind
from lightning_calib.kit.files import write_text
from lightning_calib.kit.style import look
from lightning_calib.report.html import render
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.main_table import interval_legend, markdown_file
from lightning_calib.report.section import Section, attempt
from lightning_calib.report.sections import SECTIONS
from lightning_calib.report.sections.comparisons import comparison_table
from lightning_calib.report.studies import FOLDER, study_sections

_PNG_DPI = 130
_FIGURE = re.compile(r'<figure id="figure-([\w-]+)"')


def build_report(
    calibration: Path,
    outputs: Path | None,
    destination: Path,
    preserve: Preserve = "order",
    intervals: IntervalKind = "clustered",
) -> Path:
    """Write the report of a calibration run.

    Sections whose inputs are missing say so; the page is written all the same.

    Args:
        calibration: folder that ``calibrate.py run`` wrote.
        outputs: the frozen outputs behind it, for the maps; None tries the folder that the run recorded.
        destination: folder for ``index.html``, ``table.{md,tex,csv}``, ``table_intervals.tex``,
            ``comparisons.{md,tex}``, ``figures/``, and ``studies/`` for the tables of studies.
        preserve: what the pipeline in the headline must keep of the ensemble's ranking of the classes.
        intervals: of the main table: ``clustered``, or ``two_level`` for the paper's. ``table_intervals.tex`` always
            has the paper's.

    Returns:
        Path of ``index.html``.

    Raises:
        ResultsError: where ``calibration`` holds no results at all.
    """
    inputs = Inputs.open(calibration, outputs, preserve, intervals)
    studies = study_sections(inputs)
    sections = all_sections(inputs, studies)
    page = destination / "index.html"
    destination.mkdir(parents=True, exist_ok=True)
    _write_tables(inputs, destination)
    _write_study_tables(studies, destination / FOLDER)
    _write_figures(sections, destination / "figures", page)
    write_text(page, render(f"Calibration of {inputs.results.dataset['name']}", sections))
    return page


def all_sections(inputs: Inputs, studies: list[Section]) -> list[Section]:
    """Sections in the order of the page; one of a study takes the place of the section with its key."""
    made = [(attempt(entry.key, entry.title, entry.make, inputs), entry.folded) for entry in SECTIONS]
    found = {section.key: replace(section, folded=folded) for section, folded in made if section is not None}
    last = found.popitem()[1]  # how it was made
    own = {section.key: replace(section, folded=found.get(section.key, last).folded) for section in studies}
    return [*(found | own).values(), last]


def _write_tables(inputs: Inputs, destination: Path) -> None:
    """The main table and the matched comparisons beside the page; an unfinished run has none."""
    try:
        table = inputs.table
    except (ResultsError, KeyError):
        return
    legend = interval_legend(inputs.scores_of(inputs.intervals), inputs.intervals)
    comparisons = comparison_table(inputs.results.summary["comparisons"])
    write_text(destination / "comparisons.md", comparisons.to_markdown())
    write_text(destination / "comparisons.tex", comparisons.to_latex())
    write_text(destination / "table.md", markdown_file(inputs.results.dataset["name"], table, legend))
    write_text(destination / "table.csv", table.to_csv())
    write_text(destination / "table.tex", table.to_latex())
    paper: IntervalKind = "two_level"
    told = interval_legend(inputs.scores_of(paper), paper)
    write_text(destination / "table_intervals.tex", inputs.table_of(paper).to_latex(intervals=True, legend=told))


def _write_study_tables(sections: list[Section], folder: Path) -> None:
    """Every table of a study as Markdown and LaTeX."""
    for table in (table for section in sections for table in section.tables):
        folder.mkdir(exist_ok=True)
        write_text(folder / f"{table.name}.md", table.to_markdown())
        write_text(folder / f"{table.name}.tex", table.to_latex())


def _write_figures(sections: list[Section], folder: Path, page: Path) -> None:
    """Every figure as a PNG on white, for slides and papers; those of an earlier page would be taken for this one's."""
    folder.mkdir(exist_ok=True)
    for name in _FIGURE.findall(page.read_text(encoding="utf-8")) if page.is_file() else ():
        (folder / f"{name}.png").unlink(missing_ok=True)
    for picture in (picture for section in sections for picture in section.pictures):
        with look():
            picture.figure.savefig(folder / f"{picture.name}.png", dpi=_PNG_DPI, facecolor="white")
            picture.figure.set_layout_engine("none")  # it is laid out now; the page draws it once more
