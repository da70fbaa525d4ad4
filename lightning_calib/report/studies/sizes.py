"""The sections on numbers of calibration cases and of members."""

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.columns import COLUMN, format_metric
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import MISSING
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.figures import MOST, Series, series_figure
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.table import StudyTable
from lightning_calib.studies.calibration_size import NAME as CALIBRATION
from lightning_calib.studies.ensemble_size import NAME as ENSEMBLE
from lightning_calib.studies.scores import ScoreRow

CALIBRATION_KEY, CALIBRATION_TITLE = "study-calibration-size", "Number of calibration cases"
ENSEMBLE_KEY, ENSEMBLE_TITLE = "study-ensemble-size", "Number of members"
_METRICS = ("nll", "ece", "ba_ece", "ace")


def calibration_size(inputs: Inputs) -> Section:
    """Differences to the run's own number of calibration cases."""
    facts, folder = read_facts(inputs, CALIBRATION), study_folder(inputs, CALIBRATION)
    rows = read_rows(folder / "deltas.csv", ScoreRow)
    caption = (
        f"Change of each score against fits on n = {facts['reference']} cases, paired by test case, with 95 % "
        "intervals (ACE: smallest and largest repeat). Above zero is worse."
    )
    ticks = [str(size) for size in facts["settings"]]
    figure = series_figure(panels(rows, facts["pipelines"], ticks, "Δ "), ticks, "calibration cases n", zero=True)
    lead = (
        "How many labelled cases does calibration take? The test cases stay the same; what the calibration set gains, "
        "the validation set loses."
    )
    table = _table("calibration-size", f"Differences to n = {facts['reference']}.", rows, facts["pipelines"], "n = ")
    return _section(
        CALIBRATION_KEY, CALIBRATION_TITLE, lead, Picture("calibration-size", figure, caption, wide=True), table, facts
    )


def ensemble_size(inputs: Inputs) -> Section:
    """Scores against the number of members."""
    facts, folder = read_facts(inputs, ENSEMBLE), study_folder(inputs, ENSEMBLE)
    rows = read_rows(folder / "scores.csv", ScoreRow)
    caption = (
        "Scores of pipelines on ensembles of the first M members, fitted anew for each M, with 95 % intervals (ACE: "
        "smallest and largest repeat)."
    )
    ticks = [str(size) for size in facts["settings"]]
    lines = panels(rows, facts["pipelines"], ticks, "", (*_METRICS, "dice"))
    figure = series_figure(lines, ticks, "members M")
    lead = "What are more members worth, before and after calibration? All ensembles share their cases and splits."
    deltas = read_rows(folder / "deltas.csv", ScoreRow)
    told = f"Differences to all {facts['reference']} members, paired by test case."
    table = _table("ensemble-size", told, deltas, facts["pipelines"], "M = ")
    return _section(
        ENSEMBLE_KEY, ENSEMBLE_TITLE, lead, Picture("ensemble-size", figure, caption, wide=True), table, facts
    )


def _section(
    key: str, title: str, lead: str, picture: Picture, table: StudyTable, facts: dict[str, list[str]]
) -> Section:
    notices = tuple(f"Failed: {text}" for text in facts["failures"])
    return Section(key, title, lead, "study.html", (picture,), notices, {"tables": [table]})


def panels(
    rows: list[ScoreRow], names: list[str], settings: list[str], prefix: str, metrics: tuple[str, ...] = _METRICS
) -> list[tuple[str, list[Series]]]:
    """One panel a metric, one line a pipeline."""
    found = {(row.setting, row.pipeline, row.metric): row for row in rows}
    made = []
    for metric in metrics:
        column, lines = COLUMN[metric], []
        for name in names[:MOST]:
            own = [found.get((setting, name, metric)) for setting in settings]
            bounds = (
                [float("nan") if row is None else column.shown(getattr(row, key)) for row in own]
                for key in ("mean", "low", "high")
            )
            lines.append(Series(name, *bounds))
        made.append((f"{prefix}{column.heading} {column.arrow}", lines))
    return made


def interval_text(row: ScoreRow | None) -> str:
    """A difference with its interval; a dash where there is none.

    Example:
        >>> interval_text(ScoreRow("5", "ts(z)", "nll", 0.02, -0.01, 0.05))
        '+0.0200 [−0.0100, +0.0500]'
    """
    if row is None:
        return MISSING
    column = COLUMN[row.metric]
    mean, low, high = (format_metric(column, x, 4, signed=True) for x in (row.mean, row.low, row.high))
    return f"{mean} [{low}, {high}]"


def _table(name: str, caption: str, rows: list[ScoreRow], names: list[str], prefix: str) -> StudyTable:
    """NLL and ECE differences with intervals."""
    body, settings = [], list(dict.fromkeys(row.setting for row in rows))
    for pipeline in names:
        for metric in ("nll", "ece"):
            column = COLUMN[metric]
            own = [row for row in rows if (row.pipeline, row.metric) == (pipeline, metric)]
            cells = {row.setting: interval_text(row) for row in own}
            body.append([f"{pipeline}, {column.label}", *(cells.get(setting, MISSING) for setting in settings)])
    return StudyTable(
        name, f"{caption} 95 % intervals in brackets.", ("pipeline", *(prefix + s for s in settings)), body
    )
