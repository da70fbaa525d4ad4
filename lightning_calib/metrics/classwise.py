"""Calibration of every class's probability, not of the top one only."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.metrics.plots import draw_classwise_reliability
from lightning_calib.metrics.score import Score, plain
from lightning_calib.metrics.statistics import Contents, StatisticsMetric

CLASSWISE_ECE = Score(
    key="classwise_ece",
    label="Class-wise ECE",
    title="class-wise expected calibration error",
    explanation="The gap taken for the probability of every class, not only of the top one, averaged over classes.",
    better="lower",
    needs=("classwise",),
    arithmetic=partial(plain, ImageStatistics.classwise_calibration_error),
)


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
        >>> metric = ClasswiseCalibrationError()
        >>> metric(torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """

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

    def _score(self, statistics: ImageStatistics) -> Tensor:
        return statistics.classwise_calibration_error(self.num_bins)
