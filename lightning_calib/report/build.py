"""A report from the files of a run: the page, the table in three formats, the figures."""

from pathlib import Path

from lightning_calib.experiment.layout import ResultsError
from lightning_calib.experiment.recommend import Preserve
from lightning_calib.kit.files import write_text
from lightning_calib.report.html import render
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section, attempt
from lightning_calib.report.sections import SECTIONS
from lightning_calib.report.sections.comparisons import comparison_table
from lightning_calib.report.studies import STUDY_FIGURES, study_sections, write_tables
from lightning_calib.report.style import look
from lightning_calib.report.table_files import to_csv, to_latex, to_markdown

_PNG_DPI = 130
FIGURES = (
    *("comparisons", "reliability", "bands", "confidence", "borders", "flips", "free-energy"),
    *("temperatures", "matrices", "experts", "temperature-maps"),
)


def build_report(calibration: Path, outputs: Path | None, destination: Path, preserve: Preserve = "order") -> Path:
    """Write the report of a calibration run.

    Sections whose inputs are missing say so; the page is written all the same.

    Args:
        calibration: folder that ``calibrate.py run`` wrote.
        outputs: the frozen outputs behind it, for the maps; None tries the folder that the run recorded.
        destination: folder for ``index.html``, ``table.{md,tex,csv}``, ``table_intervals.tex``,
            ``comparisons.{md,tex}`` and ``figures/``.
        preserve: what the pipeline in the headline must keep of the ensemble's ranking of the classes.

    Returns:
        Path of ``index.html``.

    Raises:
        ResultsError: where ``calibration`` holds no results at all.
    """
    inputs = Inputs.open(calibration, outputs, preserve)
    entries = (*SECTIONS[:-1], *study_sections(inputs), SECTIONS[-1])  # how it was made stays last
    sections = [attempt(key, title, make, inputs) for key, title, make in entries]
    destination.mkdir(parents=True, exist_ok=True)
    _write_tables(inputs, destination)
    write_tables(sections, destination / "studies")
    _write_figures(sections, destination / "figures")
    page = destination / "index.html"
    write_text(page, render(f"Calibration of {inputs.results.dataset['name']}", sections))
    return page


def _write_tables(inputs: Inputs, destination: Path) -> None:
    """The main table and the matched comparisons beside the page; an unfinished run has none."""
    try:
        table = inputs.table
    except (ResultsError, KeyError):
        return
    comparisons = comparison_table(inputs.results.summary["comparisons"])
    write_text(destination / "comparisons.md", comparisons.to_markdown())
    write_text(destination / "comparisons.tex", comparisons.to_latex())
    write_text(destination / "table.md", to_markdown(table))
    write_text(destination / "table.csv", to_csv(table))
    write_text(destination / "table.tex", to_latex(table))
    write_text(destination / "table_intervals.tex", to_latex(table, intervals=True))


def _write_figures(sections: list[Section], folder: Path) -> None:
    """Every figure as a PNG on white, for slides and papers."""
    folder.mkdir(exist_ok=True)
    for name in (
        *FIGURES,
        *STUDY_FIGURES,
    ):  # those of an earlier report that this one does not have would be taken for its own
        (folder / f"{name}.png").unlink(missing_ok=True)
    for section in sections:
        for picture in section.pictures:
            with look():
                picture.figure.savefig(folder / f"{picture.name}.png", dpi=_PNG_DPI, facecolor="white")
                picture.figure.set_layout_engine("none")  # it is laid out now; the page draws it once more
