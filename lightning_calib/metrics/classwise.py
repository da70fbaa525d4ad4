"""Calibration of every class's probability, not of the top one only."""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.statistics import image_statistics
from lightning_calib.metrics.base import PerImageMetric
from lightning_calib.metrics.plots import draw_classwise_reliability


class ClasswiseCalibrationError(PerImageMetric):
    """Mean over classes of each class's ECE: :func:`~lightning_calib.functional.classwise_calibration_error`.

    Args:
        num_bins: equal bins of [0, 1]; the last one is closed.
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        class_names: names for the diagram's legend.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
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
        super().__init__(("classwise", ignore_index, num_bins), average, **kwargs)
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        self.num_bins = num_bins
        self.ignore_index = ignore_index
        self.class_names = class_names

    def update(self, log_probs: Tensor, target: Tensor, case_ids: Sequence[str] | None = None) -> None:
        """Add a batch of images: ``(B, C, *S)``, ``(B, *S)`` and their names."""
        tables = image_statistics(
            log_probs, target, ignore_index=self.ignore_index, num_bins=self.num_bins, classwise=True
        ).classwise
        assert tables is not None
        counts = torch.stack([tables.voxels, tables.correct], dim=1).flatten(1)  # (B, 2 * C * K)
        self._append(case_ids, counts, tables.confidence.flatten(1))

    def table(self) -> BinTable:
        """Sums of each class and bin ``(C, K)`` over all images of all processes."""
        images = self._gathered()
        if not images.names:
            raise ValueError("there is no table yet: update() first")
        return BinTable(*(column.sum(dim=0) for column in self._tables(images.counts, images.sums)))

    def diagram(self, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Reliability diagram with a line a class."""
        return draw_classwise_reliability(self.table(), self.class_names, ax)

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        return self._tables(counts, sums).expected_error().mean(dim=-1)

    def _tables(self, counts: Tensor, sums: Tensor) -> BinTable:
        """Unpack the rows to tables ``(n, C, K)``."""
        voxels, correct = counts.view(len(counts), 2, -1, self.num_bins).unbind(dim=1)
        return BinTable(voxels, correct, sums.view(len(sums), -1, self.num_bins))
