"""How far confidences are from accuracies, over bins of the top-label confidence."""

from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.binning import BinTable, table_size
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.metrics.plots import draw_reliability
from lightning_calib.metrics.score import Score, plain
from lightning_calib.metrics.statistics import Contents, StatisticsMetric

ECE = Score(
    key="ece",
    label="ECE",
    title="expected calibration error",
    explanation="Typical gap between how confident the model says it is and how often it is right; "
    "easy voxels dominate it, since they are many.",
    better="lower",
    headline=True,
    compared=True,
    arithmetic=partial(plain, ImageStatistics.expected_calibration_error),
)
ACE = Score(
    key="ace",
    label="ACE",
    title="average calibration error",
    explanation="The gap averaged over confidence levels, so that rare, uncertain voxels count as much as the many "
    "easy ones.",
    better="lower",
    pooled=True,
    headline=True,
    arithmetic=partial(plain, ImageStatistics.average_calibration_error),
)
MCE = Score(
    key="mce",
    label="MCE",
    title="maximum calibration error",
    explanation="The largest gap at any confidence level; a level that few voxels reach can make it large by chance.",
    better="lower",
    pooled=True,
    arithmetic=partial(plain, ImageStatistics.maximum_calibration_error),
)


class BinnedMetric(StatisticsMetric):
    """A metric over equal bins of the top-label confidence.

    Metrics whose bins nest in 600 (15, 20, 30, 40, 50 among them) share one table.

    Args:
        num_bins: equal bins of [0, 1]; the last one is closed.
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        **kwargs: options of :class:`torchmetrics.Metric`.
    """

    plot_upper_bound: float | None = 1.0

    def __init__(
        self,
        num_bins: int = 15,
        ignore_index: int | None = None,
        average: Average = "pool",
        **kwargs: Any,
    ) -> None:
        super().__init__(ignore_index, average, Contents(bins=table_size(num_bins)), **kwargs)
        self.num_bins = num_bins


class ExpectedCalibrationError(BinnedMetric):
    """Gaps weighted by occupancy: see :func:`~lightning_calib.functional.expected_calibration_error`.

    Arguments as :class:`BinnedMetric`, with 50 bins and ``average="image"``.

    Example:
        >>> import torch
        >>> metric = ExpectedCalibrationError(num_bins=50)
        >>> metric.update(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    def __init__(
        self,
        num_bins: int = 50,
        ignore_index: int | None = None,
        average: Average = "image",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_bins, ignore_index, average, **kwargs)

    def _score(self, statistics: ImageStatistics) -> Tensor:
        return statistics.expected_calibration_error(self.num_bins)


class AverageCalibrationError(BinnedMetric):
    """Gaps averaged over non-empty bins: see :func:`~lightning_calib.functional.average_calibration_error`.

    Arguments as :class:`BinnedMetric`.

    Example:
        >>> import torch
        >>> metric = AverageCalibrationError()
        >>> metric(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """

    def _score(self, statistics: ImageStatistics) -> Tensor:
        return statistics.average_calibration_error(self.num_bins)


class MaximumCalibrationError(BinnedMetric):
    """The largest gap: see :func:`~lightning_calib.functional.maximum_calibration_error`.

    Arguments as :class:`BinnedMetric`.

    Example:
        >>> import torch
        >>> metric = MaximumCalibrationError()
        >>> metric(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """

    def _score(self, statistics: ImageStatistics) -> Tensor:
        return statistics.maximum_calibration_error(self.num_bins)


class ReliabilityDiagram(ExpectedCalibrationError):
    """Accuracy against confidence, to be seen: :meth:`table` and :meth:`plot`; its value is the pooled ECE.

    Args:
        num_bins: equal bins of [0, 1]; the last one is closed.
        ignore_index: label of voxels that count nowhere.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = ReliabilityDiagram(num_bins=2)
        >>> metric.update(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        >>> metric.table().voxels
        tensor([0, 4])
        >>> figure, axes = metric.plot()
    """

    def __init__(self, num_bins: int = 15, ignore_index: int | None = None, **kwargs: Any) -> None:
        super().__init__(num_bins, ignore_index, average="pool", **kwargs)

    def table(self) -> BinTable:
        """Sums of each bin ``(num_bins,)`` over all images of all processes."""
        bins = self._some().bins.coarsen(self.num_bins)
        return BinTable(*(column.sum(dim=0) for column in bins))

    def plot(self, val: BinTable | None = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw the diagram.

        Args:
            val: a table to draw instead of the current one.
            ax: matplotlib axes to draw into; a new figure by default.

        Returns:
            Figure and axes.
        """
        return draw_reliability(self.table() if val is None else val, ax=ax)
