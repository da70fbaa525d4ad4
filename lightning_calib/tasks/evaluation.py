"""The LightningModule that scores many calibrators in one pass over the test cases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_cat

from lightning_calib.calibrators.base import Calibrator, check_finite, known_finite
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.metrics.base import PerImageMetric
from lightning_calib.metrics.score import SCORES, contents_of, score_collection
from lightning_calib.metrics.statistics import StatisticsMetric
from lightning_calib.tasks.base import Task
from lightning_calib.tasks.features import ask_for_features
from lightning_calib.tasks.judging import Judging

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


class EvaluationTask(Task):
    """Judge calibrators of one pooling with ``Trainer.test``: every score of every one, each case read once.

    Logs ``test/<label>/<score>``. Afterwards :attr:`evaluated` holds, in every process, what came out over all of
    them; a case that two processes saw counts once.

    Cases can be judged in several passes, each by a task that is not ``whole``: what one has summed up
    (:meth:`states`) another takes over (:meth:`merge`), in the way in which processes are brought together.

    Args:
        calibrators: fitted calibrators by the label that trackers get.
        ignore_index: label of voxels that count nowhere.
        background: class that overlap scores leave out; None to average over all classes.
        scores: keys of the scores; by default all that there are.
        whole: whether one pass sees all cases; else nothing is concluded at its end.

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
        whole: bool = True,
    ) -> None:
        super().__init__()
        self.labels, self.background, self.whole = list(calibrators), background, whole
        self.calibrators = nn.ModuleList(calibrators.values())
        chosen = [SCORES[key] for key in (SCORES if scores is None else scores)]
        own, shared = ([score.key for score in chosen if score.of_input == kind] for kind in (False, True))
        self.scores = nn.ModuleList(score_collection(ignore_index, background, own) for _ in calibrators)
        self.of_input = score_collection(ignore_index, background, shared)
        self.evaluated: dict[str, Evaluated] = {}
        self.feature_names = tuple(dict.fromkeys(n for each in calibrators.values() for n in each.feature_names))
        self.needs_maps = any(score.metric is not None and not score.of_input for score in chosen)
        held = contents_of([score for score in chosen if not score.of_input])
        self.judging = Judging(self._fitted(), self.feature_names, ignore_index, held)

    def setup(self, stage: str) -> None:
        """Ask for the features that any of the calibrators looks at."""
        super().setup(stage)
        ask_for_features(self, self.feature_names)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a case to all scores of all calibrators."""
        logits, target = batch["logits"], batch["target"]
        features, distance = batch.get("features"), batch.get("distance")
        facts = {"case_ids": batch["case_id"], "reference": logits, "distance": distance}
        check_finite(logits)
        with torch.no_grad(), known_finite():
            found = self.judging(logits, target, features, distance)
            for calibrator, scores, sums in zip(self._fitted(), self.by_label().values(), found, strict=True):
                # Only scores with a metric of their own look at the map.
                seen = self.judging.log_probs(calibrator, logits, features) if self.needs_maps else logits
                scores.update(seen, target, statistics=sums, **facts)
            self.of_input.update(logits, target, **facts)

    def _fitted(self) -> list[Calibrator]:
        return cast(list[Calibrator], list(self.calibrators))

    def by_label(self) -> dict[str, MetricCollection]:
        """The scores of each calibrator."""
        return dict(zip(self.labels, cast(list[MetricCollection], list(self.scores)), strict=True))

    def on_test_epoch_end(self) -> None:
        """Bring the scores of all processes together, and log their figures."""
        if self.whole:
            for name, value in self.conclude().items():
                self.log(name, value, batch_size=1, sync_dist=True, reduce_fx="max")  # all have the same

    def conclude(self) -> dict[str, float]:
        """Fill :attr:`evaluated`; figures of all scores by the name that trackers get."""
        self.evaluated = {
            label: gathered(scores, self.of_input, self.background) for label, scores in self.by_label().items()
        }
        return {
            f"test/{label}/{key}": value
            for label, evaluated in self.evaluated.items()
            for key, value in evaluated.figures().items()
        }

    def states(self) -> dict[str, Tensor]:
        """What the scores of this process have summed up, by calibrator, score and state."""
        return {
            f"{number}/{key}/{state}": value
            for number, scores in enumerate([*self.by_label().values(), self.of_input])
            for key, metric in leaders(scores).items()
            for state, value in states_of(metric).items()
        }

    def merge(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """Take over what other tasks with the same calibrators have summed up.

        Args:
            parts: their :meth:`states`, in the order of the cases.
        """
        for number, scores in enumerate([*self.by_label().values(), self.of_input]):
            for key, metric in leaders(scores).items():
                merge_states(metric, [_under(f"{number}/{key}/", part) for part in parts])


def leaders(scores: MetricCollection) -> dict[str, Metric]:
    """The metrics of a collection that hold states of their own; the others of their group share them."""
    metrics = dict(scores.items(keep_base=True, copy_state=False))
    return {group[0]: metrics[group[0]] for group in scores.compute_groups.values()}


def states_of(metric: Metric) -> dict[str, Tensor]:
    """States of a metric; a list of them by number, one after the other where they are rows of one table."""
    found: dict[str, Tensor] = {}
    for name, value in metric.metric_state.items():
        if isinstance(value, Tensor):
            found[name] = value
        elif value:
            rows = [dim_zero_cat(value)] if metric._reductions[name] is dim_zero_cat else value
            found |= {f"{name}/{number}": row for number, row in enumerate(rows)}
    return {name: value.detach().cpu().clone().contiguous() for name, value in found.items()}


def merge_states(metric: Metric, parts: Sequence[Mapping[str, Tensor]]) -> None:
    """Reduce states as torchmetrics does over processes; the parts come in order, so that the result is one.

    Args:
        metric: takes the result.
        parts: states of metrics of its kind.
    """
    for name, reduce in metric._reductions.items():
        if isinstance(metric._defaults[name], list):
            setattr(metric, name, [row for part in parts for row in _under(f"{name}/", part).values()])
        else:
            stacked = torch.stack([part[name] for part in parts])
            setattr(metric, name, reduce(stacked) if callable(reduce) else stacked)
    metric._update_count = len(parts)


def _under(prefix: str, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in states.items() if name.startswith(prefix)}


def gathered(scores: MetricCollection, of_input: MetricCollection, background: int | None) -> Evaluated:
    """Scores of a collection over all processes, cases by id; sums are gathered once for all scores.

    Args:
        scores: of one calibrator.
        of_input: scores that all calibrators share.
        background: class that overlap scores leave out.
    """
    shared = next(metric for metric in scores.values() if isinstance(metric, StatisticsMetric))
    cases, statistics = shared.statistics()
    everything = statistics.pooled()
    by_case: dict[str, list[float]] = {}
    pooled: dict[str, float] = {}
    metrics = dict(scores.items()) | dict(of_input.items())
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
