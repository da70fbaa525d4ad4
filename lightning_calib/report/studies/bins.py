"""The section on binning: ECE and ACE at other numbers of bins."""

from typing import Any

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.columns import COLUMN, format_metric
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.figures import MOST, Series, series_figure
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.table import StudyTable
from lightning_calib.studies.bins import NAME, BinningRow

KEY, TITLE = "study-bins", "Number of bins"


def bins(inputs: Inputs) -> Section:
    """Whether rankings depend on how confidences are binned."""
    facts = read_facts(inputs, NAME)
    rows = read_rows(study_folder(inputs, NAME) / "bins.csv", BinningRow)
    lead = "Calibration errors depend on how confidences are binned: does the choice decide which pipeline wins? "
    lead += f"ECE is {facts['ece']['verdict']}. ACE is {facts['ace']['verdict']}."
    pictures = tuple(_picture(rows, facts["pipelines"], metric) for metric in ("ece", "ace"))
    tables = [_table(rows, facts, metric) for metric in ("ece", "ace")]
    return Section(KEY, TITLE, lead, "study.html", pictures, data={"tables": tables})


def _picture(rows: list[BinningRow], names: list[str], metric: str) -> Picture:
    column = COLUMN[metric]
    counts = sorted({row.bins for row in rows if row.metric == metric})
    found = {(row.pipeline, row.bins): row for row in rows if row.metric == metric}
    lines = []
    for name in names[:MOST]:
        own = [found[name, count] for count in counts]
        lines.append(Series(name, *([getattr(row, key) for row in own] for key in ("mean", "low", "high"))))
    figure = series_figure([(f"{column.heading} {column.arrow}", lines)], [str(count) for count in counts], "bins")
    caption = f"{column.title.capitalize()} against the number of bins; bars: {column.interval}."
    return Picture(f"bins-{metric}", figure, caption)


def _table(rows: list[BinningRow], facts: dict[str, Any], metric: str) -> StudyTable:
    column, own = COLUMN[metric], facts[metric]
    counts = sorted({row.bins for row in rows if row.metric == metric})
    found = {(row.pipeline, row.bins): row for row in rows if row.metric == metric}
    body = [[name, *(format_metric(column, found[name, n].mean, 4) for n in counts)] for name in facts["pipelines"]]
    best = {(min(range(len(body)), key=lambda i: found[body[i][0], n].mean), 1 + j) for j, n in enumerate(counts)}
    body.append(["Kendall's tau", *(f"{own['tau'][str(n)]:.2f}" for n in counts)])
    swapped = "; ".join(" and ".join(pair) for pair in own["swapped"]) or "none"
    caption = (
        f"{column.label} by number of bins. Kendall's tau compares each ranking with that at {own['reference']} bins. "
        f"Pairs that change places: {swapped}."
    )
    return StudyTable(f"bins-{metric}", caption, (column.label, *(f"B = {n}" for n in counts)), body, frozenset(best))
