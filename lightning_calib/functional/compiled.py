"""The loops of :mod:`lightning_calib.functional.fused`, compiled by numba at their first call. Nothing else imports it.

Everything is added to what the tables hold. Voxels are told apart by ``keep``: places of those that count in the chunk.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Shorts: TypeAlias = NDArray[np.int32]
Loop = TypeVar("Loop", bound=Callable[..., Any])

# Voxels whose running maxima and sums stay in the fastest cache.
BLOCK = 1024

# Classes whose squares are summed before they go to the sum of all: as torch does, so that rounding is the same.
GROUP = 16


def _compiled(function: Loop, fastmath: bool | set[str] = False) -> Loop:
    """``njit`` that keeps its code on disk, where there is a place for it."""
    try:
        found: Any = numba.njit(cache=True, nogil=True, fastmath=fastmath)(function)
    except RuntimeError:  # no folder to write to: compiled anew in each process
        found = numba.njit(nogil=True, fastmath=fastmath)(function)
    return found  # type: ignore[no-any-return]


def _reassociated(function: Loop) -> Loop:
    """The same, with sums in whatever order the processor likes."""
    return _compiled(function, {"reassoc"})


@_compiled
def voxel_facts(scores: Singles, probs: Singles, top: Singles, place: Shorts, total: Singles, square: Singles) -> None:
    """Maximum, its class (the lowest among equals), sum and sum of squares of the probabilities of each voxel.

    Loops run over slices from 0: numba makes vectors of them where it need not think of negative places.
    """
    num_classes, voxels = scores.shape
    for start in range(0, voxels, BLOCK):
        part = slice(start, min(start + BLOCK, voxels))
        best, where, sums, squares = top[part], place[part], total[part], square[part]
        best[:], where[:], sums[:], squares[:] = scores[0, part], 0, 0, 0
        done = np.zeros(len(best), dtype=np.float32)
        for c in range(1, num_classes):
            row = scores[c, part]
            for v in range(len(row)):
                where[v] = c if row[v] > best[v] else where[v]
                best[v] = row[v] if row[v] > best[v] else best[v]
        for c in range(num_classes):
            row = probs[c, part]
            for v in range(len(row)):
                sums[v] += row[v]
                squares[v] += row[v] * row[v]
            if c % GROUP == GROUP - 1:
                for v in range(len(row)):
                    done[v] += squares[v]
                    squares[v] = 0
        for v in range(len(squares)):
            squares[v] += done[v]


@_compiled
def bin_of(confidence: float, num_bins: int) -> int:
    """Bin of a confidence in [0, 1], as :func:`~lightning_calib.functional.binning.bin_index` has it."""
    index = int(confidence * num_bins)
    if confidence < index / num_bins:
        index -= 1
    if confidence >= (index + 1) / num_bins:
        index += 1
    return min(max(index, 0), num_bins - 1)


@_compiled
def top_tables(
    scores: Singles,
    probs: Singles,
    keep: Ints,
    target: Ints,
    place: Shorts,
    confidence: Floats,
    square: Singles,
    confusion: Ints,
    counts: Ints,
    sums: Floats,
    likelihood: Floats,
    gap: Singles,
) -> None:
    """Confusion, table of top confidences, NLL and Brier score; gaps ``(m,)``, where there is room for them."""
    num_bins = len(sums)
    nll = brier = 0.0
    one, two = np.float32(1), np.float32(2)
    for number in range(len(target)):
        v, label = keep[number], target[number]
        right = place[v] == label
        confusion[label, place[v]] += 1
        index = bin_of(confidence[v], num_bins)
        counts[0, index] += 1
        counts[1, index] += right
        sums[index] += confidence[v]
        nll -= scores[label, v]
        brier += np.float64(square[v] - two * probs[label, v] + one)
        if len(gap):
            gap[v] = right - confidence[v]
    likelihood[0] += nll
    likelihood[1] += brier


@_compiled
def other_tables(
    keep: Ints,
    target: Ints,
    place: Shorts,
    confidence: Floats,
    before: Ints,
    band: Ints,
    flips: Ints,
    errors: Ints,
    uncertainty: Floats,
) -> None:
    """Harmful, beneficial and neutral flips, and errors and uncertainty by band; of those that were given."""
    for number in range(len(before)):
        now, old, label = place[keep[number]], before[number], target[number]
        if now != old:
            flips[0 if old == label else 1 if now == label else 2] += 1
    for number in range(len(band)):
        v = keep[number]
        errors[band[number]] += place[v] != target[number]
        uncertainty[band[number]] += 1 - confidence[v]


@_reassociated
def class_tables(probs: Singles, counted: Singles, keep: Ints, target: Ints, counts: Ints, sums: Floats) -> None:
    """Table of each class's probability. Nearly all are in the lowest bin, which gets what the others leave over.

    The product of a probability in float32 and the number of bins is exact in float64: its bin needs no second look.
    ``counted (m,)`` is 1 where a voxel counts, else 0.
    """
    num_classes, num_bins = sums.shape
    one = np.float32(1)
    lowest = np.float32(1 / num_bins) if num_bins > 1 else np.float32(math.inf)
    for number in range(len(target)):
        label = target[number]
        own = np.float64(probs[label, keep[number]]) * num_bins
        counts[1, label, min(int(own), num_bins - 1)] += 1
    for c in range(num_classes):
        row = probs[c]
        total, above, high = 0.0, 0, 0.0
        for v in range(len(row)):
            total += np.float64((row[v] if row[v] < one else one) * counted[v])
        for v in range(len(row)):
            if row[v] * counted[v] >= lowest:
                prob = np.float64(row[v] if row[v] < one else one)
                index = min(int(prob * num_bins), num_bins - 1)
                if index > 0:
                    counts[0, c, index] += 1
                    sums[c, index] += prob
                    above += 1
                    high += prob
        counts[0, c, 0] += len(target) - above
        sums[c, 0] += max(total - high, 0.0)
