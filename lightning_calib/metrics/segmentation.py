"""How good the predicted distributions and maps are: likelihood, Brier score, Dice and IoU."""

from typing import Any

from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.overlap import class_counts, class_iou
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.metrics.statistics import StatisticsMetric


class NegativeLogLikelihood(StatisticsMetric):
    """Mean of ``-log q_y``: see :func:`~lightning_calib.functional.negative_log_likelihood`.

    Arguments as :class:`~lightning_calib.metrics.StatisticsMetric`, without ``contents``.

    Example:
        >>> import torch
        >>> metric = NegativeLogLikelihood(ignore_index=255)
        >>> metric.update(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0]), case_ids=["scan_1"])
        >>> {case: round(value, 4) for case, value in metric.per_image().items()}
        {'scan_1': 0.6931}
    """

    _arithmetic = ImageStatistics.negative_log_likelihood


class BrierScore(StatisticsMetric):
    """Mean of ``|q - onehot(y)|²``: see :func:`~lightning_calib.functional.brier_score`.

    Arguments as :class:`~lightning_calib.metrics.StatisticsMetric`, without ``contents``.

    Example:
        >>> import torch
        >>> BrierScore()(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0]))
        tensor(0.5000, dtype=torch.float64)
    """

    _arithmetic = ImageStatistics.brier_score
    plot_upper_bound: float | None = 2.0


class OverlapMetric(StatisticsMetric):
    """A score of the argmax, averaged over the classes that occur.

    Args:
        include_background: whether the background is one of the classes; False where the data set has one.
        background: which class it is.
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        **kwargs: options of :class:`torchmetrics.Metric`.
    """

    _options = ("include_background", "background")
    higher_is_better = True
    plot_upper_bound: float | None = 1.0

    def __init__(
        self,
        include_background: bool = True,
        background: int = 0,
        ignore_index: int | None = None,
        average: Average = "image",
        **kwargs: Any,
    ) -> None:
        super().__init__(ignore_index, average, **kwargs)
        self.include_background = include_background
        self.background = background


class DiceScore(OverlapMetric):
    """Dice, by default the mean over images: see :func:`~lightning_calib.functional.dice_score`.

    Arguments as :class:`OverlapMetric`.

    Example:
        >>> import torch
        >>> metric = DiceScore(include_background=False)
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]).log()
        >>> round(metric(log_probs, torch.tensor([0, 1, 1])).item(), 4)
        0.6667
    """

    _arithmetic = ImageStatistics.dice_score


class MeanIoU(OverlapMetric):
    """Intersection over union, by default of all voxels together: see :func:`~lightning_calib.functional.mean_iou`.

    Arguments as :class:`OverlapMetric`, with ``average="pool"``: how benchmarks of street scenes count.

    Example:
        >>> import torch
        >>> metric = MeanIoU(include_background=False)
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]).log()
        >>> metric(log_probs, torch.tensor([0, 1, 1]))
        tensor(0.5000, dtype=torch.float64)
        >>> metric.per_class()
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    _arithmetic = ImageStatistics.mean_iou

    def __init__(
        self,
        include_background: bool = True,
        background: int = 0,
        ignore_index: int | None = None,
        average: Average = "pool",
        **kwargs: Any,
    ) -> None:
        super().__init__(include_background, background, ignore_index, average, **kwargs)

    def per_class(self) -> Tensor:
        """IoU of every class ``(C,)``, gathered over processes; NaN for one that occurs nowhere."""
        counts = class_counts(self._some().confusion)
        return class_iou(counts.sum(dim=0, keepdim=True) if self.average == "pool" else counts).nanmean(dim=0)
