"""Scores of pipelines under several settings, and what a setting changes, with intervals; their panels and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import Floats
from lightning_calib.experiment.summary import SCORES as PER_CASE
from lightning_calib.experiment.summary import main_scores
from lightning_calib.kit.tables import MISSING, Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.figures import MOST, Series
from lightning_calib.report.main_table import main_table
from lightning_calib.report.numbers import format_interval, format_score

Panel = tuple[str, list[Series]]


@dataclass(frozen=True)
class ScoreRow:
    """A score, or a change of it, of a pipeline under one setting.

    Attributes:
        setting: what was varied, such as the kind of images or a number of cases.
        pipeline: its name.
        metric: which score.
        mean: over repeats and cases.
        low: lower bound of the 95 % interval; of ACE the smallest repeat.
        high: upper bound; of ACE the largest repeat.
    """

    setting: str
    pipeline: str
    metric: str
    mean: float
    low: float
    high: float


def score_rows(setting: str, results: Results, names: Sequence[str]) -> list[ScoreRow]:
    """Every score of some pipelines with its bounds."""
    held = [name for name in names if any(results.cases_of(r, name) for r in results.repeats)]
    rows = []
    for name, scores in main_scores(results, held).items():
        rows += [ScoreRow(setting, name, metric, *asdict(value).values()) for metric, value in scores.items()]
        aces = [results.average_calibration_error(r, name) for r in results.repeats if results.cases_of(r, name)]
        rows.append(ScoreRow(setting, name, "ace", float(np.mean(aces)), min(aces), max(aces)))
    return rows


def change_rows(setting: str, before: Results, after: Results, names: Sequence[str]) -> list[ScoreRow]:
    """How much every score of some pipelines changed, paired by test case, with intervals.

    Args:
        setting: what made the change.
        before: results that it is measured from.
        after: results under the setting, on the same test cases.
        names: the pipelines.
    """
    rows = []
    for name in names:
        shared = [r for r in before.repeats if before.cases_of(r, name) and after.cases_of(r, name)]
        if not shared:
            continue
        tables = [score_array(after, r, name) - score_array(before, r, name) for r in shared]
        found = zip(PER_CASE, before.intervals(tables, shared), strict=True)
        rows += [ScoreRow(setting, name, metric, *asdict(value).values()) for metric, value in found]
        aces = [after.average_calibration_error(r, name) - before.average_calibration_error(r, name) for r in shared]
        rows.append(ScoreRow(setting, name, "ace", float(np.mean(aces)), min(aces), max(aces)))
    return rows


def score_array(results: Results, repeat: int, name: str) -> Floats:
    """Scores of a repeat ``(cases, metrics)``, cases by id; NaN where the pipeline is missing."""
    rows = results.cases_of(repeat, name)
    if not rows:
        return np.full((len(results.test_cases(repeat)), len(PER_CASE)), np.nan)
    return np.array([[getattr(row, m) for m in PER_CASE] for row in rows], dtype=np.float64)


def panels(
    rows: Sequence[ScoreRow], names: Sequence[str], settings: Sequence[str], metrics: Sequence[str], prefix: str = ""
) -> list[Panel]:
    """One panel a metric, one line a pipeline along the settings."""
    found = {(row.setting, row.pipeline, row.metric): row for row in rows}
    made = []
    for score in (SCORES[metric] for metric in metrics):
        lines = [Series.of(n, [found.get((s, n, score.key)) for s in settings], score.shown) for n in names[:MOST]]
        made.append((f"{prefix}{score.heading} {score.arrow}", lines))
    return made


def interval_text(row: ScoreRow | None) -> str:
    """A difference with its interval; a dash where there is none.

    Example:
        >>> interval_text(ScoreRow("5", "ts(z)", "nll", 0.02, -0.01, 0.05))
        '+0.0200 [−0.0100, +0.0500]'
    """
    if row is None:
        return MISSING
    score = SCORES[row.metric]
    interval = format_interval(score, row.low, row.high, 4, signed=True)
    return f"{format_score(score, row.mean, 4, signed=True)} {interval}"


def score_table(
    dataset: str, rows: Sequence[ScoreRow], names: Sequence[str], setting: str, file: str, told: str
) -> Table:
    """All scores of pipelines under one setting of a study, arranged as the main table.

    Args:
        dataset: its name.
        rows: scores under all settings.
        names: the pipelines.
        setting: which setting.
        file: name of the table's files.
        told: the setting in words.
    """
    scores: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in rows:
        if row.setting == setting:
            scores.setdefault(row.pipeline, {})[row.metric] = {"mean": row.mean, "low": row.low, "high": row.high}
    table = main_table(dataset, list(names), scores)
    kept = tuple(replace(row, block="") for row in table.rows if not row.again)
    caption = f"Scores on {dataset}, {told}. Bold: best of a column."
    return replace(table, name=file, caption=caption, rows=kept, sortable=False)
