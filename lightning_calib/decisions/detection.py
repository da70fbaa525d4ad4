"""Detection of lesions: connected parts of the truth that masks find at each threshold, and parts that are false."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

OVERLAP = 0.1  # intersection over union from which on a part of the mask has found a lesion


@dataclass(frozen=True)
class Detections:
    """Of a case, or summed over some.

    Attributes:
        lesions: connected parts of the truth.
        found: those that a mask finds, at each threshold ``(T,)``.
        false: connected parts of the mask that find none ``(T,)``.
    """

    lesions: int
    found: NDArray[np.int64]
    false: NDArray[np.int64]


def detections(
    probs: NDArray[np.floating], truth: NDArray[np.bool_], thresholds: Sequence[float], overlap: float = OVERLAP
) -> Detections:
    """Lesions found and false parts of a case at each threshold.

    A part of the mask finds a lesion where their intersection over union is at least ``overlap``, so that a mask of
    everything finds nothing but itself. Parts are voxels that hang together by faces.

    Args:
        probs: calibrated probability of the structure ``(*S)``.
        truth: its true voxels, bool ``(*S)``.
        thresholds: ``T`` of them; voxels whose probability reaches one are in its mask.
        overlap: from which on a lesion is found.

    Example:
        >>> truth = np.array([True, True, False, False, True])
        >>> found = detections(np.array([0.9, 0.8, 0.1, 0.6, 0.1]), truth, [0.5, 0.7])
        >>> found.lesions, found.found.tolist(), found.false.tolist()
        (2, [1, 1], [1, 0])
    """
    places, lesions = ndimage.label(truth)
    rows = [_matched(places, lesions, probs >= threshold, overlap) for threshold in thresholds]
    found, false = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return Detections(int(lesions), found, false)


def _matched(places: NDArray[np.int32], lesions: int, mask: NDArray[np.bool_], overlap: float) -> tuple[int, int]:
    """Lesions found, and parts of the mask that find none."""
    parts, count = ndimage.label(mask)
    pairs = np.bincount((places * (count + 1) + parts).ravel(), minlength=(lesions + 1) * (count + 1))
    table = pairs.reshape(lesions + 1, count + 1)
    shared = table[1:, 1:]
    union = table[1:].sum(axis=1)[:, None] + table[:, 1:].sum(axis=0)[None] - shared
    hits = shared >= overlap * union
    return int(hits.any(axis=1).sum()), int(count - hits.any(axis=0).sum())
