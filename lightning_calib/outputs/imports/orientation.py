"""How one label map must be turned to become another."""

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

from numpy.typing import NDArray

from lightning_calib.datasets.orientation import Orientation
from lightning_calib.outputs.manifest import StoreError

Array = NDArray[Any]

_AGREEMENT = 0.999  # of labels: the rest is rounding at ties


def find_orientation(found: Array, wanted: Array, where: str) -> Orientation:
    """The orientation that turns one label map into another; as it is, where that fits.

    Args:
        found: labels ``(*S)`` as one program holds them.
        wanted: the same labels as a file holds them.
        where: file, for messages.

    Raises:
        StoreError: where none fits: they are not the same labels.
    """
    best = 0.0
    if found.ndim == wanted.ndim:
        for candidate in _orientations(found.ndim):
            if candidate.apply(found).shape == wanted.shape:
                agreement = float((candidate.apply(found) == wanted).mean())
                if agreement >= _AGREEMENT:
                    return candidate
                best = max(best, agreement)
    raise StoreError(
        f"{where}: the segmentation beside it (shape {wanted.shape}) is not the argmax of its scores (shape "
        f"{found.shape}) in any order of axes; at best {best:.1%} of the labels agree. Was it post-processed, or is it "
        "of another model? Keep the files as nnU-Net wrote them"
    )


def _orientations(ndim: int) -> Iterator[Orientation]:
    """All orders and directions of axes, the unchanged one first."""
    for order in permutations(range(ndim)):
        for flips in product((False, True), repeat=ndim):
            yield Orientation(order, flips)
