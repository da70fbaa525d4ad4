"""Voxels whose predicted class a calibrator changed, and whether that helped."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.voxels import as_images, chunks

FLIP_KINDS = ("harmful", "beneficial", "neutral")
"""Kinds of flips: right before and wrong now, wrong before and right now, wrong both times."""


def flip_kinds(prediction: Tensor, reference: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a prediction differs from the reference: harmful, beneficial and neutral flips, as masks ``(...)``."""
    flipped = prediction != reference
    before, now = reference == target, prediction == target
    return flipped & before, flipped & now, flipped & ~before & ~now


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
        voxels = torch.full((), prediction.numel(), device=prediction.device)
        return cls(voxels, *(kind.sum() for kind in flip_kinds(prediction, reference, target)))

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
        return {kind: getattr(self, kind) / flips for kind in FLIP_KINDS}


def flip_table(log_probs: Tensor, target: Tensor, reference: Tensor, ignore_index: int | None = None) -> FlipTable:
    """Changed predictions of each image: how many, harmful, beneficial, neutral ``(B,)``, on the CPU.

    Args:
        log_probs: scores after calibration ``(B, C, *S)``; ``(N, C)`` is one image of ``N`` voxels.
        target: integer labels ``(B, *S)``.
        reference: the pooled input's scores ``(B, C, *S)`` or predicted classes ``(B, *S)``.
        ignore_index: label of voxels that count nowhere.

    Example:
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> flip_table(log_probs, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 0])).rate()
        tensor([0.5000], dtype=torch.float64)
    """
    images, labels = as_images(log_probs, target)
    before = as_reference(reference, log_probs, target)
    rows = []
    for image, own, old in zip(images, labels, before, strict=True):
        parts = [
            torch.stack(_part(image, own, old, part, ignore_index))
            for part in chunks(len(image), image.shape[1], image.device)
        ]
        rows.append(torch.stack(parts).sum(dim=0))
    return FlipTable(*torch.stack(rows).cpu().unbind(dim=1))


def _part(scores: Tensor, labels: Tensor, old: Tensor, part: slice, ignore_index: int | None) -> FlipTable:
    """Table of one chunk of an image."""
    facts = winning_class(scores[None, :, part])[0], classes_of(old, part), labels[part]
    if ignore_index is None:
        return FlipTable.of(*facts)
    keep = labels[part] != ignore_index
    return FlipTable(keep.sum(), *((kind & keep).sum() for kind in flip_kinds(*facts)))


def as_reference(reference: Tensor, log_probs: Tensor, target: Tensor) -> Tensor:
    """Reference scores as ``(B, C, N)``, reference classes as ``(B, N)``; refused where the shape differs."""
    scores = reference.is_floating_point()
    expected = log_probs.shape if scores else target.shape
    if reference.shape != expected:
        kind = "scores" if scores else "classes"
        raise ValueError(f"reference {kind} must have the shape {tuple(expected)}, got {tuple(reference.shape)}")
    if scores:
        return as_images(reference, target)[0]
    return as_images(log_probs, reference)[1]


def classes_of(reference: Tensor, part: slice) -> Tensor:
    """Classes ``(m,)`` of a part of one image's reference: scores ``(C, N)`` or classes ``(N,)``."""
    return winning_class(reference[None, :, part])[0] if reference.is_floating_point() else reference[part].long()
