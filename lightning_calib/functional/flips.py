"""Voxels whose predicted class a calibrator changed, and whether that helped."""

from typing import NamedTuple, Self

import torch
from torch import Tensor


class FlipTable(NamedTuple):
    """Counts of changed predictions, all int64 ``(...)``.

    Attributes:
        voxels: voxels that count.
        harmful: right before, wrong now.
        beneficial: wrong before, right now.
        neutral: wrong before, wrong in another way now.
    """

    voxels: Tensor
    harmful: Tensor
    beneficial: Tensor
    neutral: Tensor

    @classmethod
    def of(cls, prediction: Tensor, reference: Tensor, target: Tensor) -> Self:
        """Table of a flat list of voxels: classes now, before, and true."""
        flipped = prediction != reference
        before, now = reference == target, prediction == target
        counts = [flipped & before, flipped & now, flipped & ~before & ~now]
        voxels = torch.tensor(prediction.numel(), device=prediction.device)
        return cls(voxels, *(kind.sum() for kind in counts))

    def flips(self) -> Tensor:
        """Number of changed predictions ``(...)``."""
        return self.harmful + self.beneficial + self.neutral

    def rate(self) -> Tensor:
        """Share of voxels that changed ``(...)``; NaN without voxels."""
        return self.flips().double() / self.voxels

    def audit(self) -> dict[str, Tensor]:
        """Shares of the flips that are harmful, beneficial and neutral ``(...)``; NaN without flips.

        Example:
            >>> table = FlipTable(*torch.tensor([100, 6, 3, 1]))
            >>> {kind: round(share.item(), 2) for kind, share in table.audit().items()}
            {'harmful': 0.6, 'beneficial': 0.3, 'neutral': 0.1}
        """
        flips = self.flips().double()
        kinds = {"harmful": self.harmful, "beneficial": self.beneficial, "neutral": self.neutral}
        return {name: count / flips for name, count in kinds.items()}
