"""Tables of every class's probability: all of them, not only the top one's, in little more time."""

import math

import numpy as np
import torch
from torch import Tensor

from lightning_calib.functional.binning import BinTable, bin_index, tally
from lightning_calib.functional.voxels import Voxels, only


def class_tables(voxels: Voxels, num_bins: int) -> BinTable:
    """Tables of every class's probability ``(C, K)``: an event comes true where the label is the class."""
    probs = only(voxels.probs, voxels.keep).to(voxels.confidence.device).clamp(max=1).contiguous()
    shape, size = (len(probs), num_bins), len(probs) * num_bins
    own = probs.gather(0, voxels.target[None])[0]
    correct = tally(bin_index(own, num_bins) + voxels.target * num_bins, size)
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
    """The same to the last bit, at a fraction of the time: nearly all probabilities are in the lowest bin.

    Those above it are few and go to their bins one by one. The others are summed in order, which is what
    filling their bin does; zeros in the place of the few, written into ``probs``, change nothing.
    """
    (num_classes, voxels), size = probs.shape, len(probs) * num_bins
    edge = _at_least(1 / num_bins, probs) if num_bins > 1 else math.inf
    high = torch.from_numpy(np.flatnonzero((probs >= edge).numpy()))
    flat = probs.view(-1)
    top = flat[high]
    index = bin_index(top, num_bins) + high.div(max(1, voxels), rounding_mode="floor") * num_bins
    count, sums = tally(index, size), tally(index, size, top.double())
    lowest = slice(None, None, num_bins)
    count[lowest] += voxels - count.view(num_classes, num_bins).sum(dim=1)
    flat.index_fill_(0, high, 0)
    if voxels:
        sums[lowest] += torch.stack([row.double().cumsum(dim=0)[-1] for row in probs])
    return count, sums


def _at_least(value: float, like: Tensor) -> float:
    """Smallest number of the type of ``like`` that is not below a float64."""
    near = torch.tensor(value, dtype=like.dtype)
    return near.item() if near.item() >= value else near.nextafter(near + 1).item()
