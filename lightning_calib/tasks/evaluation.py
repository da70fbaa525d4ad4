"""The LightningModule that scores many calibrators in one pass over the test cases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torchmetrics import MetricCollection

from lightning_calib.calibrators.base import Calibrator, check_finite, known_finite
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.metrics.base import PerImageMetric
from lightning_calib.metrics.score import SCORES, score_collection
from lightning_calib.metrics.statistics import StatisticsMetric

Batch = dict[str, Any]


@dataclass(frozen=True)
class Evaluated:
    """What the test cases say about one calibrator.

    Attributes:
        cases: case ids, in order.
        statistics: the sums behind the scores, one row a case.
        scores: by key of the score the values of all cases.
        pooled: by key the value over all voxels together, for scores that have no value a case.
    """

    cases: list[str]
    statistics: ImageStatistics
    scores: dict[str, list[float]]
    pooled: dict[str, float]

    def figures(self) -> dict[str, float]:
        """One figure a score: the mean over cases, or the pooled value."""
        means = {key: torch.tensor(values, dtype=torch.float64).nanmean().item() for key, values in self.scores.items()}
        return means | self.pooled


class EvaluationTask(LightningModule):
    """Judge calibrators of one pooling with ``Trainer.test``: every score of every one, each case read once.

    Logs ``test/<label>/<score>``. Afterwards :attr:`evaluated` holds, in every process, what came out over all of
    them; a case that two processes saw counts once.

    Args:
        calibrators: fitted calibrators by the label that trackers get.
        ignore_index: label of voxels that count nowhere.
        background: class that overlap scores leave out; None to average over all classes.
        scores: keys of the scores; by default all that there are.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> EvaluationTask({"ts(z)": build("ts", 3)}).labels
        ['ts(z)']
    """

    def __init__(
        self,
        calibrators: Mapping[str, Calibrator],
        ignore_index: int | None = None,
        background: int | None = None,
        scores: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.labels, self.background = list(calibrators), background
        self.calibrators = nn.ModuleList(calibrators.values())
        self.scores = nn.ModuleList(score_collection(ignore_index, background, scores) for _ in calibrators)
        self.evaluated: dict[str, Evaluated] = {}

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a case to all scores of all calibrators."""
        logits, target = batch["logits"], batch["target"]
        facts = {"case_ids": batch["case_id"], "reference": logits, "distance": batch.get("distance")}
        check_finite(logits)
        with known_finite():
            for calibrator, scores in zip(self.calibrators, self.by_label().values(), strict=True):
                scores.update(calibrator(logits), target, **facts)

    def by_label(self) -> dict[str, MetricCollection]:
        """The scores of each calibrator."""
        return dict(zip(self.labels, cast(list[MetricCollection], list(self.scores)), strict=True))

    def on_test_epoch_end(self) -> None:
        """Bring the scores of all processes together, and log their figures."""
        for label, scores in self.by_label().items():
            self.evaluated[label] = gathered(scores, self.background)
            for key, value in self.evaluated[label].figures().items():
                self.log(f"test/{label}/{key}", value, batch_size=1, rank_zero_only=True)


def gathered(scores: MetricCollection, background: int | None) -> Evaluated:
    """Scores of a collection over all processes, cases by id; sums are gathered once for all scores."""
    shared = next(metric for metric in scores.values() if isinstance(metric, StatisticsMetric))
    cases, statistics = shared.statistics()
    everything = statistics.pooled()
    by_case: dict[str, list[float]] = {}
    pooled: dict[str, float] = {}
    metrics = dict(scores.items())
    for key in (key for key in SCORES if key in metrics):
        score, metric = SCORES[key], metrics[key]
        if score.arithmetic is not None and score.pooled:
            pooled[key] = float(score.arithmetic(everything, background))
        elif score.arithmetic is not None:
            by_case[key] = score.arithmetic(statistics, background).tolist()
        elif score.pooled:
            pooled[key] = float(metric.compute())
        else:
            values = cast(PerImageMetric, metric).per_image()
            by_case[key] = [values[case] for case in cases]
    return Evaluated(cases, statistics, by_case, pooled)
