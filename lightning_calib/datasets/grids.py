"""The way between a file's grid and the one a network sees: cut out a box, then resample."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

Array = NDArray[Any]
Box = tuple[tuple[int, int], ...]


def nonzero_box(inside: Array) -> Box:
    """Smallest box around the true voxels, ``(start, stop)`` along each axis; everything if there are none.

    Example:
        >>> nonzero_box(np.array([[0, 0, 0], [0, 1, 1]]))
        ((1, 2), (1, 3))
    """
    if not inside.any():
        return tuple((0, n) for n in inside.shape)
    axes = range(inside.ndim)
    lines = [np.flatnonzero(inside.any(axis=tuple(a for a in axes if a != axis))) for axis in axes]
    return tuple((int(line[0]), int(line[-1]) + 1) for line in lines)


@dataclass(frozen=True)
class Grid:
    """Where the network's grid lies in the file's.

    Attributes:
        native: shape of the file's grid.
        box: the part that the network sees, ``(start, stop)`` along each axis.
        shape: shape of that part after resampling.
    """

    native: tuple[int, ...]
    box: Box
    shape: tuple[int, ...]

    @classmethod
    def fit(cls, native: tuple[int, ...], box: Box, zoom: tuple[float, ...]) -> "Grid":
        """Grid of a box resampled by a factor along each axis.

        Example:
            >>> Grid.fit((10, 10, 10), ((0, 10), (2, 8), (0, 10)), (1.0, 1.0, 0.5)).shape
            (10, 6, 5)
        """
        shape = tuple(max(round((b - a) * z), 1) for (a, b), z in zip(box, zoom, strict=True))
        return cls(tuple(native), box, shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index of the last axes."""
        return tuple(slice(a, b) for a, b in self.box)

    @property
    def cropped(self) -> bool:
        """Whether the network sees less than the whole."""
        return self.box != tuple((0, n) for n in self.native)

    def _sample(self, values: Tensor, shape: tuple[int, ...], mode: str) -> Tensor:
        if values.shape[1:] == shape:
            return values
        corners = False if mode == "trilinear" else None
        return interpolate(values[None], size=shape, mode=mode, align_corners=corners)[0]

    def image(self, image: Array) -> Array:
        """Image ``(channels, *native)`` float32 on the network's grid, trilinear."""
        box = torch.from_numpy(np.ascontiguousarray(image[(slice(None), *self.slices)]))
        return self._sample(box, self.shape, "trilinear").numpy()

    def target(self, target: Array) -> Array:
        """Class numbers ``(*native)`` on the network's grid, of the nearest voxel."""
        box = torch.from_numpy(np.ascontiguousarray(target[self.slices]).astype(np.float32))
        return self._sample(box[None], self.shape, "nearest-exact")[0].numpy().astype(np.int64)

    def valid(self) -> Array:
        """Voxels of the file's grid that the network sees ``(*native)``."""
        seen = np.zeros(self.native, dtype=bool)
        seen[self.slices] = True
        return seen

    def restore(self, logits: Tensor) -> Tensor:
        """Logits ``(C, *shape)`` on the file's grid ``(C, *native)``: trilinear, and zero outside the box."""
        if logits.shape[1:] != self.shape:
            raise ValueError(f"logits of shape {tuple(logits.shape[1:])}; the network saw {self.shape}")
        inside = self._sample(logits, tuple(b - a for a, b in self.box), "trilinear")
        if not self.cropped:
            return inside
        full = logits.new_zeros((len(logits), *self.native))
        full[(slice(None), *self.slices)] = inside
        return full
