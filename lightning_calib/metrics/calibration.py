"""How far confidences are from accuracies, over bins of the top-label confidence or of every class's probability."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_calib.functional.averages import Average
from lightning_calib.functional.binning import BinTable, table_size
from lightning_calib.functional.statistics import Contents, ImageStatistics
from lightning_calib.metrics.plots import draw_classwise_reliability, draw_reliability
from lightning_calib.metrics.statistics import StatisticsMetric


class BinnedMetric(StatisticsMetric):
    """A metric over equal bins of the top-label confidence.

    Metrics whose bins nest in 600 (15, 20, 30, 40, 50 among them) share one table.

    Args:
        num_bins: equal bins of [0, 1]; the last one is closed.
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        **kwargs: options of :class:`torchmetrics.Metric`.
    """

    _options = ("num_bins",)
    plot_upper_bound: float | None = 1.0

    def __init__(
        self, num_bins: int = 15, ignore_index: int | None = None, average: Average = "pool", **kwargs: Any
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

    _arithmetic = ImageStatistics.expected_calibration_error

    def __init__(
        self, num_bins: int = 50, ignore_index: int | None = None, average: Average = "image", **kwargs: Any
    ) -> None:
        super().__init__(num_bins, ignore_index, average, **kwargs)


class AverageCalibrationError(BinnedMetric):
    """Gaps averaged over non-empty bins: see :func:`~lightning_calib.functional.average_calibration_error`.

    Arguments as :class:`BinnedMetric`.

    Example:
        >>> import torch
        >>> AverageCalibrationError()(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """

    _arithmetic = ImageStatistics.average_calibration_error


class MaximumCalibrationError(BinnedMetric):
    """The largest gap: see :func:`~lightning_calib.functional.maximum_calibration_error`.

    Arguments as :class:`BinnedMetric`.

    Example:
        >>> import torch
        >>> MaximumCalibrationError()(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """

    _arithmetic = ImageStatistics.maximum_calibration_error


class ReliabilityDiagram(ExpectedCalibrationError):
    """Accuracy against confidence, to be seen: :meth:`table` and :meth:`plot`; its value is the pooled ECE.

    Arguments as :class:`BinnedMetric`, without ``average``.

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
        """Draw the diagram of the given or the current table, into ``ax`` or a new figure."""
        return draw_reliability(self.table() if val is None else val, ax=ax)


class ClasswiseCalibrationError(StatisticsMetric):
    """Mean over classes of each class's ECE: :func:`~lightning_calib.functional.classwise_calibration_error`.

    Args:
        num_bins: equal bins of [0, 1]; the last one is closed.
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        class_names: names for the diagram's legend.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> ClasswiseCalibrationError()(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """

    _arithmetic = ImageStatistics.classwise_calibration_error
    _options = ("num_bins",)
    plot_upper_bound: float | None = 1.0

    def __init__(
        self,
        num_bins: int = 50,
        ignore_index: int | None = None,
        average: Average = "image",
        class_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        super().__init__(ignore_index, average, Contents(bins=1, class_bins=num_bins), **kwargs)
        self.num_bins = num_bins
        self.class_names = class_names

    def table(self) -> BinTable:
        """Sums of each class and bin ``(C, K)`` over all images of all processes."""
        tables = self._some().classwise
        assert tables is not None  # the rows hold them
        return BinTable(*(column.sum(dim=0) for column in tables))

    def diagram(self, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Reliability diagram with a line a class."""
        return draw_classwise_reliability(self.table(), self.class_names, ax)
