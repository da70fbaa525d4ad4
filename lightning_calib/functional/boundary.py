"""Distance of every voxel to the boundary between labels, and calibration in bands of that distance."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import edt
import numpy as np
import torch
from torch import Tensor

from lightning_calib.functional.binning import tally

BANDS = (0.0, 3.0, 7.0, 15.0, math.inf)
"""Edges of the distance bands [0, 3) [3, 7) [7, 15) [15, inf), in voxels."""


def check_bands(bands: Sequence[float]) -> tuple[float, ...]:
    """Edges of distance bands as a tuple, refused unless they rise from 0 to infinity.

    Example:
        >>> check_bands([0, 5, float("inf")])
        (0.0, 5.0, inf)
    """
    edges = tuple(float(edge) for edge in bands)
    rising = all(low < high for low, high in pairwise(edges))
    if len(edges) < 2 or edges[0] != 0 or edges[-1] != math.inf or not rising:
        raise ValueError(f"bands must rise from 0 to infinity, such as {BANDS}; got {edges}")
    return edges


def boundary(target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Voxels with a face neighbour of another label, on both sides; ignored voxels make no boundary.

    From the integer labels ``(*S)`` of one image to bool ``(*S)``.

    Example:
        >>> boundary(torch.tensor([0, 0, 1, 1, 255, 0]), ignore_index=255)
        tensor([False,  True,  True, False, False, False])
    """
    edge = torch.zeros_like(target, dtype=torch.bool)
    for axis in range(target.ndim):
        length = target.shape[axis] - 1
        low, high = target.narrow(axis, 0, length), target.narrow(axis, 1, length)
        differ = low != high
        if ignore_index is not None:
            differ &= (low != ignore_index) & (high != ignore_index)
        edge.narrow(axis, 0, length).logical_or_(differ)
        edge.narrow(axis, 1, length).logical_or_(differ)
    return edge


def boundary_distance(target: Tensor, ignore_index: int | None = None) -> Tensor:
    r"""Exact Euclidean distance of every voxel to the nearest boundary voxel.

    .. math:: d(v) = \min_{u \in \partial y} \lVert v - u \rVert_2

    with ``∂y`` the voxels of :func:`boundary`, in voxels (no spacing). 0 on the boundary itself; infinite
    everywhere in an image with one label only. The transform is exact (Felzenszwalb & Huttenlocher 2012, as
    in the ``edt`` package) and runs on the CPU.

    Args:
        target: integer labels ``(B, *S)`` with one to three spatial axes.
        ignore_index: label that counts nowhere.

    Returns:
        float32 ``(B, *S)`` on the device of ``target``.

    Example:
        >>> boundary_distance(torch.tensor([[0, 0, 0, 1, 1]]))
        tensor([[2., 1., 0., 0., 1.]])
    """
    if not 2 <= target.ndim <= 4:
        raise ValueError(f"distances need a target (B, *S) with 1 to 3 spatial axes, got {tuple(target.shape)}")
    distances = torch.empty(target.shape, dtype=torch.float32)
    for labels, out in zip(target, distances, strict=True):
        edge = boundary(labels, ignore_index).cpu()
        out.copy_(torch.from_numpy(_transform(~edge.numpy())) if edge.any() else torch.tensor(math.inf))
    return distances.to(target.device)


def _transform(away: np.ndarray) -> np.ndarray:
    """Distance of each True voxel to the nearest False one; the image's border is not a boundary."""
    return np.asarray(edt.edt(np.ascontiguousarray(away), black_border=False, parallel=torch.get_num_threads()))


class DistanceCache:
    """Computes :func:`boundary_distance` once a target and keeps the latest, up to a size.

    Targets are known by their content: the same labels give the kept distances, under whatever name or
    pipeline they come back; changed labels never do.

    Args:
        ignore_index: label that counts nowhere.
        max_bytes: what the kept distances may take together; the least recently used leave first.

    Example:
        >>> distances = DistanceCache()
        >>> target = torch.tensor([[0, 0, 1]])
        >>> distances(target) is distances(target.clone())
        True
    """

    def __init__(self, ignore_index: int | None = None, max_bytes: int = 2**30) -> None:
        self.ignore_index = ignore_index
        self.max_bytes = max_bytes
        self.num_computed = 0
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    def __call__(self, target: Tensor) -> Tensor:
        """Distances ``(B, *S)`` of a batch of targets ``(B, *S)``."""
        key = self._key(target)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key].to(target.device)
        distance = boundary_distance(target, self.ignore_index)
        self.num_computed += 1
        self._kept[key] = distance.cpu()
        while sum(kept.nbytes for kept in self._kept.values()) > self.max_bytes:
            self._kept.popitem(last=False)
        return distance

    @staticmethod
    def _key(target: Tensor) -> bytes:
        content = hashlib.blake2b(f"{target.dtype}{tuple(target.shape)}".encode(), digest_size=16)
        content.update(target.cpu().contiguous().numpy().data)
        return content.digest()


class Banded(NamedTuple):
    """A flat list of voxels by distance band.

    Attributes:
        band: int64 band of each voxel ``(n,)``.
        voxels: int64 voxels of each band ``(K,)``.
        distance: float64 sum of the distances in each band ``(K,)``.

    Example:
        >>> Banded.of(torch.tensor([0.0, 5.0, 1.0]), BANDS).voxels
        tensor([2, 1, 0, 0])
    """

    band: Tensor
    voxels: Tensor
    distance: Tensor

    @classmethod
    def of(cls, distance: Tensor, bands: tuple[float, ...]) -> Self:
        """Bands of distances ``(n,)``."""
        size, distance = len(bands) - 1, distance.double()
        band = torch.zeros_like(distance, dtype=torch.int64)
        for edge in bands[1:-1]:
            band += distance >= edge
        return cls(band, tally(band, size), tally(band, size, distance))


class BandTable(NamedTuple):
    """Sums of the voxels in each distance band.

    Attributes:
        voxels: int64 voxels ``(..., K)``.
        errors: int64 voxels whose prediction is wrong ``(..., K)``.
        uncertainty: float64 sum of ``1 - confidence`` ``(..., K)``.
        distance: float64 sum of the distances ``(..., K)``.
    """

    voxels: Tensor
    errors: Tensor
    uncertainty: Tensor
    distance: Tensor

    @classmethod
    def of(cls, banded: Banded, wrong: Tensor, confidence: Tensor) -> Self:
        """Table of a flat list of voxels: their bands, whether they are wrong ``(n,)``, their confidences ``(n,)``."""
        errors = tally(banded.band, len(banded.voxels), wrong.double()).long()
        uncertainty = tally(banded.band, len(banded.voxels), 1 - confidence)
        return cls(banded.voxels, errors, uncertainty, banded.distance)

    def error(self) -> Tensor:
        r"""Boundary-aware calibration error ``(...)``; NaN without voxels.

        .. math::
            \frac{\sum_k w_k \lvert \bar U_k - \bar E_k \rvert}{\sum_k w_k}, \qquad
            w_k = \frac{1}{1 + \bar d_k}

        over the bands ``k`` that hold voxels, with the mean uncertainty ``U``, error ``E`` and distance ``d``
        of the band. An image without a boundary has one band at infinity: the gap of that band.
        """
        gaps = ((self.uncertainty - self.errors) / self.voxels).abs()
        mean = self.distance / self.voxels
        weights = 1 / (1 + mean)
        only_far = weights.nansum(dim=-1, keepdim=True) == 0
        weights = torch.where(only_far & (self.voxels > 0), 1.0, weights)
        return (weights * gaps).nansum(dim=-1) / weights.nansum(dim=-1)
