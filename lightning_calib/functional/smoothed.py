"""Smoothed uncertainty beside smoothed error: where in an image the two disagree (SPACE)."""

import math

import torch
from torch import Tensor

from lightning_calib.functional.devices import sums_device
from lightning_calib.functional.voxels import Chunk, Voxels

SIGMA = 2.0
"""Width of the Gaussian in voxels, unless asked for otherwise."""


def check_sigma(sigma: float, log_probs: Tensor) -> None:
    """Refuse a Gaussian without width, and voxels without neighbours.

    Example:
        >>> check_sigma(2.0, torch.zeros(1, 2, 4))
    """
    if sigma <= 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    if log_probs.ndim < 3:
        raise ValueError(f"a smoothed error needs spatial axes (B, C, *S), got {tuple(log_probs.shape)}")


class GapMap:
    """Uncertainty minus error of every voxel of an image, 0 where a voxel does not count.

    Args:
        shape: of the image ``S``.
        device: where its voxels are.
    """

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self.shape = shape
        self.values = torch.zeros(shape.numel(), dtype=torch.float32, device=device)

    def fill(self, chunk: Chunk, voxels: Voxels, correct: Tensor) -> None:
        """Enter a chunk: its voxels, and which of them are predicted right ``(n,)``."""
        own = (correct.double() - voxels.confidence).float().to(self.values.device)
        part = self.values[chunk.part]
        if chunk.keep is None:
            part.copy_(own)
        else:
            part.index_copy_(0, chunk.keep, own)

    def smoothed_sum(self, keep: Tensor | None, mass: Tensor, sigma: float) -> Tensor:
        """Sum of ``|G * U - G * E|`` over the voxels that count, float64 ``()``.

        Args:
            keep: bool ``(N,)`` of the voxels that count, or None for all.
            mass: :func:`smoothed_mass` of them.
            sigma: width of the Gaussian.
        """
        gaps = gaussian(self.values.view(self.shape), sigma).div_(mass).abs_().flatten()
        counted = gaps if keep is None else torch.where(keep, gaps, 0.0)
        return counted.to(sums_device(gaps.device)).sum(dtype=torch.float64)


def smoothed_mass(counted: Tensor, sigma: float) -> Tensor:
    """Share of the Gaussian around each voxel that falls on voxels that count ``(*S)``, from a mask ``(*S)``.

    Example:
        >>> smoothed_mass(torch.ones(1, dtype=torch.bool), sigma=0.25)
        tensor([0.9993])
    """
    return gaussian(counted.float(), sigma)


def gaussian(values: Tensor, sigma: float) -> Tensor:
    """Gaussian filter of a map ``(*S)``, zero outside, cut off at four sigma.

    Example:
        >>> gaussian(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), sigma=0.25)
        tensor([0.0000e+00, 3.3524e-04, 9.9933e-01, 3.3524e-04, 0.0000e+00])
    """
    radius = math.ceil(4 * sigma)
    weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(radius + 1)]
    total = 2 * sum(weights) - 1
    weights = [weight / total for weight in weights]
    for axis in range(values.ndim):
        lines = values.movedim(axis, 0)
        values = lines * weights[0]
        for away in range(1, min(radius + 1, len(lines))):  # both neighbours that far away; vectors of whole rows
            values[away:].add_(lines[:-away], alpha=weights[away])
            values[:-away].add_(lines[away:], alpha=weights[away])
        values = values.movedim(0, axis)
    return values
