"""Tables of every class's probability: all of them, not only the top one's, in little more time."""

import math

import numpy as np
import torch
from torch import Tensor

from lightning_calib.functional.binning import BinTable, bin_index, tally
from lightning_calib.functional.voxels import Chunk, Voxels, only


def class_tables(voxels: Voxels, chunk: Chunk, num_bins: int) -> BinTable:
    """Tables of every class's probability ``(C, K)``: an event comes true where the label is the class."""
    probs = only(voxels.probs, chunk.keep).to(voxels.confidence.device).clamp(max=1).contiguous()
    shape, size = (len(probs), num_bins), len(probs) * num_bins
    own = probs.gather(0, chunk.target[None])[0]
    correct = tally(bin_index(own, num_bins) + chunk.target * num_bins, size)
    fill = sparse_tables if probs.device.type == "cpu" else dense_tables
    count, sums = fill(probs, num_bins)
    return BinTable(count.view(shape), correct.view(shape), sums.view(shape))


def dense_tables(probs: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Count and sum of each class and bin ``(C * K,)`` of probabilities ``(C, n)``."""
    offset = torch.arange(len(probs), device=probs.device)[:, None] * num_bins
    index = (bin_index(probs, num_bins) + offset).flatten()
    size = len(probs) * num_bins
    return tally(index, size), tally(index, size, probs.flatten().double())


def sparse_tables(probs: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """The same at a fraction of the time: nearly all probabilities are in the lowest bin.

    Those above it are few and go to their bins one by one. What is left of a class's voxels and of its sum is in the
    lowest bin: exact for counts, to float64's rounding of the class's sum for sums.
    """
    (num_classes, voxels), size = probs.shape, len(probs) * num_bins
    above = probs >= (_at_least(1 / num_bins, probs) if num_bins > 1 else math.inf)
    high = torch.from_numpy(np.flatnonzero(above.numpy()))
    top = probs.view(-1).index_select(0, high)
    first = torch.arange(0, size, num_bins).repeat_interleave(above.sum(dim=1))  # by class, as the places are
    index = bin_index(top, num_bins) + first
    count, sums = tally(index, size).view(num_classes, num_bins), tally(index, size, top.double()).view(-1, num_bins)
    count[:, 0] = voxels - count.sum(dim=1)
    sums[:, 0] = (probs.sum(dim=1, dtype=torch.float64) - sums.sum(dim=1)).clamp_(min=0)
    return count.flatten(), sums.flatten()


def _at_least(value: float, like: Tensor) -> float:
    """Smallest number of the type of ``like`` that is not below a float64."""
    near = torch.tensor(value, dtype=like.dtype)
    return near.item() if near.item() >= value else near.nextafter(near + 1).item()
