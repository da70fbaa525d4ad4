"""Perceptual hashes of a case: what its labels and its confidences look like from afar."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lightning_calib.outputs.doctor.sample import score_maps
from lightning_calib.outputs.store import StoredCase

GRID = {2: 16, 3: 12}  # cells a side
_LABELS, _SCORES = {2: 4, 3: 4}, {2: 4, 3: 2}  # points a side of a cell that are looked at; scores are large to read
_STEP = 0.02  # a smaller difference of neighbouring cells counts as none
_GOLDEN = 0.6180339887498949  # multiples of it modulo 1 are far apart: grey values for labels, whatever their numbers
_CONTENT = 16  # differences below which a map shows too little to be recognised
_BLOCK = 1024  # rows compared at a time


@dataclass(frozen=True)
class PerceptualHash:
    """Difference hashes of one case, values -1, 0 and 1.

    Attributes:
        grid: cells along each axis.
        target: of the labels.
        confidence: of the pooled confidences.
    """

    grid: tuple[int, ...]
    target: Tensor
    confidence: Tensor

    @property
    def has_content(self) -> bool:
        """Whether labels and confidences both show enough to be recognised."""
        return min(int(self.target.count_nonzero()), int(self.confidence.count_nonzero())) >= _CONTENT


def perceptual_hash(case: StoredCase) -> PerceptualHash:
    """Hash of a case from points on a lattice, so that most of a large file stays unread."""
    grid = tuple(min(GRID[len(case.shape)], size) for size in case.shape)
    points = lattice(case.shape, grid, _LABELS[len(grid)])
    grey = (case.target[points].double() * _GOLDEN) % 1
    points = lattice(case.shape, grid, _SCORES[len(grid)])
    index: tuple[slice | Tensor, ...] = (slice(None), slice(None), *points)
    scores = score_maps(case)[index].float()  # (M, C, *lattice)
    confidence = scores.softmax(dim=1).mean(dim=0).amax(dim=0).nan_to_num()
    if case.valid is not None:
        confidence = torch.where(case.valid[points], confidence, 1.0)
    return PerceptualHash(grid, difference_hash(grey.float(), grid), difference_hash(confidence, grid))


def lattice(shape: tuple[int, ...], grid: tuple[int, ...], points: int) -> tuple[Tensor, ...]:
    """Index of evenly spread voxels, ``points`` along each side of a cell where there are as many."""
    sides = [min(points * cells, size) for cells, size in zip(grid, shape, strict=True)]
    axes = [((torch.arange(n) + 0.5) * size / n).long() for n, size in zip(sides, shape, strict=True)]
    return torch.meshgrid(*axes, indexing="ij")


def difference_hash(values: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Whether the mean rises (1), falls (-1) or stays (0) from each cell of a grid to the next, along each axis.

    Example:
        >>> difference_hash(torch.tensor([[0.0, 0.0, 1.0, 0.5]]), (1, 4)).tolist()
        [0, 1, -1]
    """
    pool = functional.adaptive_avg_pool2d if values.ndim == 2 else functional.adaptive_avg_pool3d
    cells = pool(values[None, None], grid)[0, 0]  # type: ignore[arg-type]
    steps = torch.cat([cells.diff(dim=axis).flatten() for axis in range(cells.ndim)])
    return torch.where(steps.abs() < _STEP, 0, steps.sign()).to(torch.int8)


def alike_pairs(hashes: Tensor, least: float) -> Tensor:
    """Pairs of rows whose hashes agree.

    Args:
        hashes: ``(n, bits)`` of -1, 0 and 1.
        least: share of agreement from which two are alike, see :func:`agreement`.

    Returns:
        Row numbers ``(pairs, 2)``, the smaller one first.
    """
    rows, found = hashes.float(), [torch.zeros(0, 2, dtype=torch.long)]
    counts = rows.abs().sum(1)
    for first in range(0, len(rows), _BLOCK):
        block = rows[first : first + _BLOCK]
        both = block.abs() @ rows[first:].abs().T  # places where neither is 0
        same = (block @ rows[first:].T + both) / 2
        either = counts[first : first + _BLOCK, None] + counts[None, first:] - both
        pairs = (same >= least * either.clamp(min=1)).triu(diagonal=1).nonzero()
        found.append(pairs + first)
    return torch.cat(found)


def agreement(one: Tensor, other: Tensor) -> Tensor:
    """Share of equal signs among the places where one of two hashes ``(..., bits)`` is not 0.

    It is 1 minus a Hamming distance that passes over what is flat in both: two nearly empty images are not alike.

    Example:
        >>> float(agreement(torch.tensor([0, 0, 1, -1]), torch.tensor([0, 1, 1, 1])))
        0.3333333432674408
    """
    either = (one != 0) | (other != 0)
    return ((one == other) & either).sum(-1) / either.sum(-1).clamp(min=1)
