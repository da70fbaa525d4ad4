"""What calibration does to decisions, and the offsets that it may stumble over."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.energy import free_energy_moments, spread_of
from lightning_calib.functional.flips import FlipTable, flip_table
from lightning_calib.metrics.base import PerImageMetric


class FlipRate(PerImageMetric):
    """Share of voxels whose predicted class changed: see :func:`~lightning_calib.functional.flip_rate`.

    Args:
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        **kwargs: options of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = FlipRate()
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> metric.update(log_probs, torch.tensor([0, 0, 1, 1]), reference=torch.tensor([0, 1, 1, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
        >>> metric.audit()
        {'harmful': 0.5, 'beneficial': 0.5, 'neutral': 0.0}
    """

    plot_upper_bound: float | None = 1.0

    def __init__(
        self,
        ignore_index: int | None = None,
        average: Average = "image",
        **kwargs: Any,
    ) -> None:
        super().__init__(("flips", ignore_index), average, **kwargs)
        self.ignore_index = ignore_index

    def update(
        self,
        log_probs: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        reference: Tensor | None = None,
    ) -> None:
        """Add a batch of images.

        Args:
            log_probs: scores after calibration ``(B, C, *S)``.
            target: integer labels ``(B, *S)``.
            case_ids: name of each image.
            reference: the pooled input's scores ``(B, C, *S)`` or predicted classes ``(B, *S)``.
        """
        if reference is None:
            raise ValueError("flips are counted against a reference: pass the pooled logits as reference=")
        table = flip_table(log_probs, target, reference, self.ignore_index)
        counts = torch.stack(list(table), dim=1)
        self._append(case_ids, counts, torch.zeros(len(counts), 0, dtype=torch.float64))

    def audit(self) -> dict[str, float]:
        """Shares of all flips that are harmful, beneficial and neutral; NaN where nothing flipped."""
        counts = self._gathered().counts
        totals = counts.sum(dim=0) if counts.numel() else torch.zeros(4, dtype=torch.int64)
        return {kind: share.item() for kind, share in FlipTable(*totals).audit().items()}

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        return FlipTable(*counts.unbind(dim=1)).rate()


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

    def update(self, logits: Tensor, target: Tensor | None = None, case_ids: Sequence[str] | None = None) -> None:
        """Add a batch of images: raw pooled logits ``(B, C, *S)`` and, to leave voxels out, ``(B, *S)``."""
        moments = free_energy_moments(logits, target, self.ignore_index)
        self._append(case_ids, moments[:, :1].long(), moments)

    def quartiles(self) -> Tensor:
        """Lower quartile, median and upper quartile over images, float64 ``(3,)``."""
        scores = self._image_scores(self._gathered())
        return scores.nanquantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        return spread_of(sums)
