"""Scores of pipelines under several settings, and what a setting changes, with intervals; their panels and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.summary import main_scores, pooled_scores, score_array
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
        low: lower bound of the 95 % interval; the smallest repeat where a pooled score has none.
        high: upper bound; the largest repeat where a pooled score has none.
    """

    setting: str
    pipeline: str
    metric: str
    mean: float
    low: float
    high: float


def score_rows(setting: str, results: Results, names: Sequence[str]) -> list[ScoreRow]:
    """Every score of some pipelines with its bounds."""
    rows = []
    for name, scores in main_scores(results, [name for name in names if name in results.scored]).items():
        rows += [ScoreRow(setting, name, metric, *asdict(value).values()) for metric, value in scores.items()]
        for key, own in pooled_scores(results, name).items():
            low, high = own.get("low", own["min"]), own.get("high", own["max"])
            rows.append(ScoreRow(setting, name, key, own["mean"], low, high))
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
        shared = [r for r in before.scored_repeats(name) if r in after.scored_repeats(name)]
        if not shared:
            continue
        tables = [score_array(after, r, name) - score_array(before, r, name) for r in shared]
        found = zip(before.case_scores, before.intervals(tables, shared), strict=True)
        rows += [ScoreRow(setting, name, score.key, *asdict(value).values()) for score, value in found]
        for score in before.pooled_scores:
            values = [after.pooled(r, name, score.key) - before.pooled(r, name, score.key) for r in shared]
            rows.append(ScoreRow(setting, name, score.key, float(np.mean(values)), min(values), max(values)))
    return rows


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
    caption = f"Scores on {dataset}, {told}."
    return replace(table, name=file, caption=caption, rows=kept, sortable=False)
