"""Where in the image confidences are wrong: by distance to the boundary, and locally smoothed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_calib.functional.boundary import BANDS, check_bands
from lightning_calib.functional.smoothed import space_errors
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.metrics.base import PerImageMetric
from lightning_calib.metrics.statistics import Contents, StatisticsMetric


class BoundaryAwareCalibrationError(StatisticsMetric):
    """Gaps in distance bands: see :func:`~lightning_calib.functional.boundary_aware_calibration_error`.

    Args:
        bands: edges of the distance bands in voxels, from 0 to infinity.
        ignore_index: label of voxels that neither count nor make a boundary.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = BoundaryAwareCalibrationError()
        >>> log_probs = torch.tensor([0.75, 0.25]).log().view(1, 2, 1).expand(1, 2, 4)
        >>> metric(log_probs, torch.tensor([[0, 0, 1, 1]]))
        tensor(0.2500, dtype=torch.float64)
    """

    _arithmetic = ImageStatistics.boundary_aware_calibration_error
    plot_upper_bound: float | None = 1.0

    def __init__(self, bands: Sequence[float] = BANDS, ignore_index: int | None = None, **kwargs: Any) -> None:
        edges = check_bands(bands)
        super().__init__(ignore_index, contents=Contents(bins=1, bands=edges), **kwargs)
        self.bands = edges


class SPACE(PerImageMetric):
    """Disagreement of smoothed uncertainty and error: see :func:`~lightning_calib.functional.space_error`.

    Args:
        sigma: width of the Gaussian in voxels.
        ignore_index: label of voxels that count nowhere.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> log_probs = torch.tensor([0.75, 0.25]).log().view(1, 2, 1).expand(1, 2, 4)
        >>> round(SPACE()(log_probs, torch.zeros(1, 4, dtype=torch.int64)).item(), 4)
        0.25
    """

    plot_upper_bound: float | None = 1.0

    def __init__(self, sigma: float = 2.0, ignore_index: int | None = None, **kwargs: Any) -> None:
        super().__init__(("space", ignore_index, sigma), **kwargs)
        self.sigma = sigma
        self.ignore_index = ignore_index

    def update(self, log_probs: Tensor, target: Tensor, case_ids: Sequence[str] | None = None) -> None:
        """Add a batch of images: ``(B, C, *S)``, ``(B, *S)`` and their names."""
        scores = space_errors(log_probs, target, self.sigma, self.ignore_index)
        self._append(case_ids, torch.ones(len(scores), 1, dtype=torch.int64), scores[:, None])

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        return sums[:, 0]
