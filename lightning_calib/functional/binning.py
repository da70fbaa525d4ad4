"""Confidence bins: which bin a confidence belongs to, and the table of sums that all scores come from."""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

TABLE_BINS = 600
"""Bins of the fine table: 600 = 12 * 50 = 40 * 15, so it serves 15, 20, 30, 40 and 50 bins exactly."""

LANES = 32
"""Copies of a table on a device, so that neighbouring voxels of one bin do not wait for each other."""


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    r"""Bin of each confidence among equal bins of [0, 1], the last one closed.

    .. math:: k(p) = \max \{k \in 0..K-1 : k / K \le p\}

    with ``p`` the confidence, ``K`` the number of bins and every edge ``k / K`` rounded to float64 once. This
    is ``min(floor(p * K), K - 1)``, without the error of the rounded product: an edge of 50 bins is the same
    number as the twelfth edge of 600, so that tables nest exactly, for confidences on an edge too.

    Args:
        confidence: values in [0, 1], float32 or float64.
        num_bins: ``K``.

    Returns:
        int64 bins in ``0..K-1``, shaped like ``confidence``.

    Example:
        >>> bin_index(torch.tensor([0.0, 0.3, 0.999, 1.0], dtype=torch.float64), 10)
        tensor([0, 3, 9, 9])
    """
    wide = confidence.double()
    index = (wide * num_bins).long()
    if confidence.dtype == torch.float64:  # float32 times K < 2^29 is exact in float64; float64 is rounded
        index -= (wide < index.double() / num_bins).long()
        index += (wide >= (index + 1).double() / num_bins).long()
    return index.clamp_(0, num_bins - 1)


def tally(index: Tensor, size: int, weights: Tensor | None = None) -> Tensor:
    """How often each of ``0..size-1`` occurs (int64), or the sum of its float64 weights ``(size,)``.

    Example:
        >>> tally(torch.tensor([0, 2, 2]), 3), tally(torch.tensor([], dtype=torch.int64), 1, torch.zeros(0).double())
        (tensor([1, 0, 2]), tensor([0.], dtype=torch.float64))
    """
    if index.device.type == "cpu":
        found = torch.bincount(index, weights=weights, minlength=size)
        return found if weights is None else found.double()  # of nothing, bincount forgets the type of its weights
    return scattered_tally(index, size, weights)


def scattered_tally(index: Tensor, size: int, weights: Tensor | None = None) -> Tensor:
    """:func:`tally` for devices, where bincount would wait for the host to learn the largest index."""
    values = torch.ones_like(index) if weights is None else weights
    lane = torch.arange(len(index), device=index.device) % LANES
    table = torch.zeros(size * LANES, dtype=values.dtype, device=index.device)
    return table.scatter_add_(0, index * LANES + lane, values).view(size, LANES).sum(dim=1)


class BinTable(NamedTuple):
    """Sums of the voxels in each confidence bin; tables of parts add up to the table of the whole.

    Attributes:
        voxels: int64 voxels in the bin ``(..., K)``.
        correct: int64 voxels in the bin whose event came true ``(..., K)``.
        confidence: float64 sum of the confidences ``(..., K)``.

    Example:
        >>> table = BinTable(torch.tensor([0, 4]), torch.tensor([0, 3]), torch.tensor([0.0, 3.6]).double())
        >>> table.expected_error()
        tensor(0.1500, dtype=torch.float64)
    """

    voxels: Tensor
    correct: Tensor
    confidence: Tensor

    @classmethod
    def of(cls, index: Tensor, correct: Tensor, confidence: Tensor, size: int) -> Self:
        """Table of a flat list of voxels: their bins, whether they are correct, their confidences."""
        pairs = tally(2 * index + correct, 2 * size).view(size, 2)
        return cls(pairs.sum(dim=1), pairs[:, 1].contiguous(), tally(index, size, confidence))

    def coarsen(self, num_bins: int) -> Self:
        """The same voxels in fewer bins, exactly; ``num_bins`` must divide the number of bins."""
        fine = self.voxels.shape[-1]
        if num_bins < 1 or fine % num_bins:
            raise ValueError(
                f"{num_bins} bins do not nest in a table of {fine}: choose a divisor of {fine} "
                f"or build the table with num_bins={num_bins}"
            )
        return type(self)(*(x.view(*x.shape[:-1], num_bins, -1).sum(dim=-1) for x in self))

    def accuracy(self) -> Tensor:
        """Share of correct voxels in each bin ``(..., K)``; NaN in empty bins."""
        return self.correct.double() / self.voxels

    def mean_confidence(self) -> Tensor:
        """Mean confidence in each bin ``(..., K)``; NaN in empty bins."""
        return self.confidence / self.voxels

    def gaps(self) -> Tensor:
        """``|accuracy - mean confidence|`` of each bin ``(..., K)``; NaN in empty bins."""
        return (self.accuracy() - self.mean_confidence()).abs()

    def expected_error(self) -> Tensor:
        """Gaps weighted by occupancy ``(...)``; NaN without voxels."""
        return (self.correct - self.confidence).abs().sum(dim=-1) / self.voxels.sum(dim=-1)

    def average_error(self) -> Tensor:
        """Gaps averaged over the bins that hold voxels ``(...)``; NaN without voxels."""
        return self.gaps().nanmean(dim=-1)

    def maximum_error(self) -> Tensor:
        """The largest gap ``(...)``; NaN without voxels."""
        largest = self.gaps().nan_to_num(nan=-1.0).amax(dim=-1)
        return largest.masked_fill(largest < 0, torch.nan)


def table_size(*bin_counts: int) -> int:
    """Smallest useful table that serves all bin counts: 600 bins where they nest there, else their own.

    Example:
        >>> table_size(15, 50), table_size(64)
        (600, 64)
    """
    for count in bin_counts:
        if count < 1:
            raise ValueError(f"num_bins must be at least 1, got {count}")
    if all(TABLE_BINS % count == 0 for count in bin_counts):
        return TABLE_BINS
    return math.lcm(*bin_counts)
