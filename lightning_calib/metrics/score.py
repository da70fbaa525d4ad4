"""What a score is: its name, how readers see it, its arithmetic; and the scores that there are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lightning_calib.functional.boundary import BANDS
from lightning_calib.functional.smoothed import SIGMA
from lightning_calib.functional.statistics import Contents, ImageStatistics
from lightning_calib.kit.registry import Registry
from lightning_calib.metrics.statistics import StatisticsMetric, pack, unpack

Better = Literal["lower", "higher"]
Need = Literal["classwise", "flips", "bands", "smoothed"]
Arithmetic = Callable[[ImageStatistics, int | None], Tensor]

CLASS_BINS = 50
"""Bins of each class's table in a collection: what class-wise ECE asks for."""


@dataclass(frozen=True)
class Score:
    """One number about a pipeline on a case. It is a function of image statistics, or has a metric of its own.

    Attributes:
        key: its name in result files; trackers call it ``test/<key>``.
        label: heading of its column.
        title: its name in full.
        explanation: one sentence for someone who meets it for the first time.
        better: which direction is an improvement; None where neither is.
        percent: whether values are shown as percentages.
        decimals: fewest decimals shown.
        digits: digits shown of the smallest value of a column.
        pooled: one value a repeat from all its voxels, not one a case.
        headline: a column of the main table.
        compared: part of paired comparisons.
        of_input: whether it depends on the pooled input alone: measured once for all calibrators of a pass.
        needs: what its arithmetic takes out of the statistics beside confidences, confusion and likelihood.
        arithmetic: from the statistics of ``B`` images and the background class (None where there is none) to
            float64 ``(B,)``. A function of a module, so that it can travel to other processes.
        metric: a torchmetrics class with ``update(log_probs, target, case_ids=...)`` and ``per_image()``, where
            statistics do not suffice; it is built with ``ignore_index=``.

    Example:
        >>> SCORES["dice"].heading, SCORES["dice"].arrow, SCORES["dice"].shown(0.5)
        ('Dice (%)', '↑', 50.0)
    """

    key: str
    label: str
    title: str
    explanation: str
    better: Better | None
    percent: bool = False
    decimals: int = 3
    digits: int = 2
    pooled: bool = False
    headline: bool = False
    compared: bool = False
    of_input: bool = False
    needs: tuple[Need, ...] = ()
    arithmetic: Arithmetic | None = None
    metric: Callable[..., Metric] | None = None

    def __post_init__(self) -> None:
        """Refuse a score that could not be computed or named."""
        if not self.key.isidentifier():
            raise ValueError(f"the key {self.key!r} of a score must be a name such as 'ece'")
        if (self.arithmetic is None) == (self.metric is None):
            raise ValueError(f"the score {self.key!r} must have either arithmetic= or metric=")
        if self.of_input and self.metric is None:
            raise ValueError(f"the score {self.key!r} is one of the input: give it a metric=")

    @property
    def arrow(self) -> str:
        """Arrow that points to better values."""
        return {"lower": "↓", "higher": "↑", None: ""}[self.better]

    @property
    def heading(self) -> str:
        """Label with its unit."""
        return f"{self.label} (%)" if self.percent else self.label

    @property
    def interval(self) -> str:
        """What the bounds beside its mean are."""
        return "smallest and largest repeat" if self.pooled else "95 % interval"

    def shown(self, value: float) -> float:
        """A value in the unit of the column."""
        return 100 * value if self.percent else value


def plain(method: Callable[[ImageStatistics], Tensor], statistics: ImageStatistics, background: int | None) -> Tensor:
    """Arithmetic of a score to which the background is a class like any other."""
    return method(statistics)


def overlap(
    method: Callable[[ImageStatistics, bool, int], Tensor], statistics: ImageStatistics, background: int | None
) -> Tensor:
    """Arithmetic of a score that leaves the background out."""
    return method(statistics, background is None, background or 0)


def _check(name: str, thing: Any) -> None:  # noqa: ANN401
    if not isinstance(thing, Score):
        raise ValueError(f"{name} is no Score, but {thing!r}")
    if thing.key != name and ("." not in name or thing.key in SCORES):
        raise ValueError(f"the score with the key {thing.key!r} cannot be registered as {name!r}")


_OF_STATISTICS = ("nll", "dice", "ece", "ba_ece", "ace", "brier", "flip", "miou", "mce", "classwise_ece")
_OF_A_METRIC = ("space", "free_energy_spread")
_OURS = {key: f"lightning_calib.metrics.catalogue:{key.upper()}" for key in _OF_STATISTICS + _OF_A_METRIC}
SCORES: Registry[Score] = Registry("score", "lightning_calib.scores", _OURS, _check)


def register_score(score: Score) -> Score:
    """Add a score of one's own: every collection, result table and report has it from then on.

    Example:
        >>> register_score(SCORES["ece"])
        Traceback (most recent call last):
        ...
        ValueError: there is a score 'ece' already; choose another name
    """
    return SCORES.register(score.key, score)


def main_scores() -> list[Score]:
    """The columns of the main table.

    Example:
        >>> [score.key for score in main_scores()]
        ['nll', 'dice', 'ece', 'ba_ece', 'ace', 'brier', 'flip']
    """
    return [score for score in SCORES.values() if score.headline]


class ScoreMetric(StatisticsMetric):
    """The torchmetrics form of a score that is a function of image statistics."""

    def __init__(self, score: Score, contents: Contents, ignore_index: int | None, background: int | None) -> None:
        super().__init__(ignore_index, "pool" if score.pooled else "image", contents)
        self.score = score
        self.background = background

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """As the score says."""
        return None if self.score.better is None else self.score.better == "higher"

    def update(
        self,
        log_probs: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        *,
        statistics: ImageStatistics | None = None,
        **facts: Tensor | None,
    ) -> None:
        """Add a batch of images; where it is summed up already, ``statistics`` is all that is looked at."""
        if statistics is None:
            super().update(log_probs, target, case_ids, **facts)
        else:
            self._append(case_ids, *pack(statistics))

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        assert self.score.arithmetic is not None  # score_collection has made sure
        return self.score.arithmetic(unpack(counts, sums, self.contents), self.background)


def contents_of(scores: Sequence[Score]) -> Contents:
    """What statistics must hold for all of these scores.

    Example:
        >>> contents_of([SCORES["ece"], SCORES["flip"]]).flips
        True
    """
    needs = {need for score in scores for need in score.needs}
    return Contents(
        class_bins=CLASS_BINS if "classwise" in needs else 0,
        flips="flips" in needs,
        bands=BANDS if "bands" in needs else (),
        sigma=SIGMA if "smoothed" in needs else 0.0,
    )


def score_collection(
    ignore_index: int | None, background: int | None, scores: Sequence[str | Score] | None = None
) -> MetricCollection:
    """Metrics of all scores by their keys; what comes out of image statistics takes one pass together.

    ``update(log_probs, target, case_ids=..., reference=raw pooled logits, distance=boundary distances)``.

    Args:
        ignore_index: label of voxels that count nowhere.
        background: class that overlaps leave out; None to average over all classes.
        scores: which ones, by name or as they are; by default all that there are.

    Example:
        >>> import torch
        >>> collection = score_collection(None, None, ["ece", "dice"])
        >>> collection.update(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        >>> collection.compute()["ece"], collection.compute_groups
        (tensor(0.2500, dtype=torch.float64), {0: ['ece', 'dice']})
    """
    chosen = [SCORES[score] if isinstance(score, str) else score for score in (SCORES if scores is None else scores)]
    contents = contents_of(chosen)
    metrics: dict[str, Metric | MetricCollection] = {
        score.key: ScoreMetric(score, contents, ignore_index, background)
        if score.metric is None
        else score.metric(ignore_index=ignore_index)
        for score in chosen
    }
    shared = [[score.key for score in chosen if score.metric is None]]
    alone = [[score.key] for score in chosen if score.metric is not None]
    return MetricCollection(metrics, compute_groups=[group for group in shared + alone if group])
