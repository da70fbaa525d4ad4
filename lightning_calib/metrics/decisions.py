"""What calibration does to decisions, and the offsets that it may stumble over."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.energy import free_energy_moments, spread_of
from lightning_calib.functional.flips import FlipTable, flip_table
from lightning_calib.functional.statistics import Contents, ImageStatistics
from lightning_calib.metrics.base import PerImageMetric
from lightning_calib.metrics.statistics import StatisticsMetric


class FlipRate(StatisticsMetric):
    """Share of voxels whose predicted class changed: see :func:`~lightning_calib.functional.flip_rate`.

    Arguments as :class:`~lightning_calib.metrics.StatisticsMetric`, without ``contents``.

    Example:
        >>> metric = FlipRate()
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> metric.update(log_probs, torch.tensor([0, 0, 1, 1]), reference=torch.tensor([0, 1, 1, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
        >>> metric.audit()
        {'harmful': 0.5, 'beneficial': 0.5, 'neutral': 0.0}
    """

    _arithmetic = ImageStatistics.flip_rate
    plot_upper_bound: float | None = 1.0

    def __init__(self, ignore_index: int | None = None, average: Average = "image", **kwargs: Any) -> None:
        super().__init__(ignore_index, average, Contents(bins=0, flips=True), **kwargs)

    def audit(self) -> dict[str, float]:
        """Shares of all flips that are harmful, beneficial and neutral; NaN where nothing flipped."""
        flips = self.statistics()[1].flips
        assert flips is not None  # the rows hold them
        return {kind: share.item() for kind, share in FlipTable(*(count.sum() for count in flips)).audit().items()}

    def _measure(
        self, log_probs: Tensor, target: Tensor, reference: Tensor | None, distance: Tensor | None
    ) -> ImageStatistics:
        """Flips alone need no probabilities: any scores will do, and nothing else is known of them."""
        assert reference is not None  # update has made sure
        flips = flip_table(log_probs, target, reference, self.ignore_index)
        unknown = torch.full(flips.voxels.shape, torch.nan, dtype=torch.float64)
        none = flips.voxels.new_empty(len(unknown), 0)
        bins = BinTable(none, none, none.double())
        return ImageStatistics(nll=unknown, brier=unknown, confusion=none[..., None], bins=bins, flips=flips)


class FreeEnergySpread(PerImageMetric):
    r"""Standard deviation over an image's voxels of the free energy of raw pooled logits, mean over images.

    .. math:: \mathrm{Std}_v\, F(z(v)), \qquad F(z) = \log \sum_c e^{z_c}

    The free energy is the offset that the softmax does not see; where it varies, calibrators that are not
    translation invariant give different answers to the same probabilities.

    Args:
        ignore_index: label of voxels that count nowhere.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = FreeEnergySpread()
        >>> metric(torch.tensor([[[0.0, 2.0]]]))
        tensor(1., dtype=torch.float64)
    """

    def __init__(self, ignore_index: int | None = None, **kwargs: Any) -> None:
        super().__init__(("free energy", ignore_index), **kwargs)
        self.ignore_index = ignore_index

    def update(
        self,
        logits: Tensor,
        target: Tensor | None = None,
        case_ids: Sequence[str] | None = None,
        *,
        reference: Tensor | None = None,
    ) -> None:
        """Add a batch of images.

        Args:
            logits: raw pooled logits ``(B, C, *S)``.
            target: integer labels ``(B, *S)``, to leave voxels out.
            case_ids: name of each image.
            reference: the raw pooled logits, where ``logits`` are another metric's log-probabilities.
        """
        if reference is not None and not reference.is_floating_point():
            raise ValueError("the free energy is one of raw pooled logits, not of classes: pass them as reference=")
        logits = logits if reference is None else reference
        moments = free_energy_moments(logits, target, self.ignore_index)
        self._append(case_ids, moments[:, :1].long(), moments)

    def quartiles(self) -> Tensor:
        """Lower quartile, median and upper quartile over images, float64 ``(3,)``."""
        scores = self._image_scores(self._gathered())
        return scores.nanquantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        return spread_of(sums)
