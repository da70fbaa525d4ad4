"""Where in the image confidences are wrong: by distance to the boundary, and locally smoothed."""

from collections.abc import Sequence
from typing import Any

from lightning_calib.functional.boundary import BANDS, check_bands
from lightning_calib.functional.smoothed import SIGMA
from lightning_calib.functional.statistics import Contents, ImageStatistics
from lightning_calib.metrics.statistics import StatisticsMetric


class BoundaryAwareCalibrationError(StatisticsMetric):
    """Gaps in distance bands: see :func:`~lightning_calib.functional.boundary_aware_calibration_error`.

    Args:
        bands: edges of the distance bands in voxels, from 0 to infinity.
        ignore_index: label of voxels that neither count nor make a boundary.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
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


class SPACE(StatisticsMetric):
    """Disagreement of smoothed uncertainty and error: see :func:`~lightning_calib.functional.space_error`.

    Args:
        sigma: width of the Gaussian in voxels.
        ignore_index: label of voxels that count nowhere.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([0.75, 0.25]).log().view(1, 2, 1).expand(1, 2, 4)
        >>> round(SPACE()(log_probs, torch.zeros(1, 4, dtype=torch.int64)).item(), 4)
        0.25
    """

    _arithmetic = ImageStatistics.space_error
    plot_upper_bound: float | None = 1.0

    def __init__(self, sigma: float = SIGMA, ignore_index: int | None = None, **kwargs: Any) -> None:
        super().__init__(ignore_index, contents=Contents(bins=1, sigma=sigma), **kwargs)
        self.sigma = sigma
