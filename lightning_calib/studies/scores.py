"""Scores of pipelines under several settings, and what a setting changes, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import Floats
from lightning_calib.experiment.summary import SCORES, main_scores


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
        found = zip(SCORES, before.intervals(tables, shared), strict=True)
        rows += [ScoreRow(setting, name, metric, *asdict(value).values()) for metric, value in found]
        aces = [after.average_calibration_error(r, name) - before.average_calibration_error(r, name) for r in shared]
        rows.append(ScoreRow(setting, name, "ace", float(np.mean(aces)), min(aces), max(aces)))
    return rows


def score_array(results: Results, repeat: int, name: str) -> Floats:
    """Scores of a repeat ``(cases, metrics)``, cases by id; NaN where the pipeline is missing."""
    rows = results.cases_of(repeat, name)
    if not rows:
        return np.full((len(results.test_cases(repeat)), len(SCORES)), np.nan)
    return np.array([[getattr(row, m) for m in SCORES] for row in rows], dtype=np.float64)
