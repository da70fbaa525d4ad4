"""Orders and directions of axes, and how voxels of one grid come in the order of another's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Affine = Sequence[Sequence[float]]

_NEAR = 0.1  # voxels: headers round


@dataclass(frozen=True)
class Orientation:
    """An order of spatial axes and which of them run the other way.

    Attributes:
        order: for each axis of the result, the axis that it was.
        flips: for each axis of the result, whether it is reversed.
    """

    order: tuple[int, ...]
    flips: tuple[bool, ...]

    def apply(self, array: Array) -> Array:
        """Turn the last axes of an array, as many as there are.

        Example:
            >>> Orientation((1, 0), (True, False)).apply(np.array([[[1, 2, 3], [4, 5, 6]]])).tolist()
            [[[3, 6], [2, 5], [1, 4]]]
        """
        lead = array.ndim - len(self.order)
        turned = array.transpose(*range(lead), *(lead + axis for axis in self.order))
        flipped: Array = np.flip(turned, tuple(lead + axis for axis, flip in enumerate(self.flips) if flip))
        return flipped


def turned(array: Array, own: Affine, wanted: Affine, shape: tuple[int, ...]) -> Array:
    """An array whose voxels are the same points as those of another grid, in that grid's order of axes.

    Args:
        array: ``(D, H, W)``, the axes z, y, x of its file.
        own: matrix of the array's file, from ``(x, y, z)`` to mm.
        wanted: matrix of the other grid.
        shape: its shape ``(D, H, W)``.

    Raises:
        ValueError: where the two grids are not the same points.

    Example:
        >>> flipped = np.diag([-1.0, 1.0, 1.0, 1.0])
        >>> flipped[0, 3] = 2
        >>> turned(np.arange(3).reshape(1, 1, 3), flipped.tolist(), np.eye(4).tolist(), (1, 1, 3)).tolist()
        [[[2, 1, 0]]]
    """
    way = np.linalg.solve(np.asarray(wanted, dtype=np.float64), np.asarray(own, dtype=np.float64))  # index to index
    signs = np.rint(way[:3, :3])
    lengths = np.array(array.shape[::-1])
    if array.ndim != 3 or not (np.abs(signs).sum(axis=0) == 1).all() or not (np.abs(signs).sum(axis=1) == 1).all():
        raise ValueError("the grids have other axes")
    order = [int(np.flatnonzero(line)[0]) for line in signs]  # for each axis wanted, the own one
    flips = [bool(line[axis] < 0) for line, axis in zip(signs, order, strict=True)]
    start = np.where(flips, lengths[order] - 1, 0)
    drift = np.abs(way[:3, :3] - signs) @ lengths + np.abs(way[:3, 3] - start)
    if drift.max() > _NEAR or tuple(lengths[order]) != tuple(shape[::-1]):
        raise ValueError("the grids are not the same points")
    return np.ascontiguousarray(Orientation(tuple(order), tuple(flips)).apply(array.T).T)
