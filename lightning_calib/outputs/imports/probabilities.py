"""From probabilities to log-probabilities, with a word about what is lost."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_calib.outputs.manifest import StoreError

Array = NDArray[Any]

_TOLERANCE = 1e-2  # of sums over classes: float16 with many classes needs as much


def log_probs(probs: Array, where: str) -> tuple[Array, int]:
    r"""Log-probabilities of probabilities that a file holds.

    .. math:: \log \max(p_c, \varepsilon)

    with ``ε`` the smallest normal number of the array's own type. A probability of 0 is one that rounding has
    taken: its logarithm cannot be recovered, only bounded. Denormal numbers become ``ε`` as well, so that no
    class overtakes another.

    Args:
        probs: ``(..., C, *S)`` with classes on axis 1: ``(M, C, *S)``.
        where: file and case, for messages.

    Returns:
        float32 of the same shape, and how many probabilities were 0.

    Raises:
        StoreError: where values are no probabilities.

    Example:
        >>> values, zeros = log_probs(np.array([[[1.0], [0.0]]], dtype=np.float16), "a.npz")
        >>> values.dtype.name, round(float(values[0, 1, 0]), 2), zeros
        ('float32', -9.7, 1)
    """
    if probs.dtype.kind != "f":
        raise StoreError(f"{where}: probabilities of type {probs.dtype}; fractions are expected")
    if bad := int((~np.isfinite(probs)).sum()):
        raise StoreError(f"{where}: {bad:,} of {probs.size:,} probabilities are NaN or infinite; did training diverge?")
    if probs.min() < 0 or probs.max() > 1 + _TOLERANCE:
        raise StoreError(
            f"{where}: values from {probs.min()} to {probs.max()} are no probabilities; import logits with "
            "--representation logits"
        )
    sums = probs.sum(axis=1, dtype=np.float64)
    if (off := np.abs(sums - 1)).max() > _TOLERANCE:
        place = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
        raise StoreError(
            f"{where}: the classes' probabilities sum to {sums[place]:.4f} at member {place[0]}, voxel {place[1:]}; "
            "regions that overlap (sigmoid outputs) are no classes and cannot be calibrated as such"
        )
    wide = np.maximum(probs, np.finfo(probs.dtype).tiny).astype(np.promote_types(probs.dtype, np.float32))
    return np.log(wide).astype(np.float32), int((probs == 0).sum())
