"""Reading of volumes: channels are stacked, cut to content, resampled and normalised."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.checks import class_numbers
from lightning_calib.datasets.dicom import read_segments, read_series, series_spacing
from lightning_calib.datasets.grids import Grid, nonzero_box
from lightning_calib.datasets.orientation import turned
from lightning_calib.datasets.preprocessing import LATER
from lightning_calib.datasets.readers import (
    SEGMENTS,
    SERIES,
    VOLUME_INPUTS,
    VOLUMES,
    VolumeFile,
    load_array,
    read_affine,
    read_labels,
    read_nifti,
    suffix,
)

Array = NDArray[Any]

UNIT_SPACING = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Volume:
    """A case in memory.

    Attributes:
        image: float32 ``(channels, D, H, W)``, normalised, on the network's grid.
        target: class numbers ``(D, H, W)``, on the network's or the file's grid.
        valid: voxels of the target's grid that the network sees; None if it sees all.
        geometry: JSON-able facts for writing results back as a file.
        grid: the way back to the file's grid; None where the network's is the same.
    """

    image: Array
    target: Array
    valid: Array | None
    geometry: dict[str, Any]
    grid: Grid | None = None


def _nifti_spacing(path: Path) -> tuple[float, ...]:
    import nibabel  # of the extra `volumes`

    return tuple(float(z) for z in nibabel.load(path).header.get_zooms()[:3])[::-1]


def _read_npy(path: Path) -> VolumeFile:
    return VolumeFile(load_array(path), UNIT_SPACING, np.eye(4).tolist())


# What reads a volume, and its voxel size without its voxels, by the file's ending.
_READ: dict[str, Callable[[Path], VolumeFile]] = {".npy": _read_npy, SERIES: read_series}
_SPACING: dict[str, Callable[[Path], tuple[float, ...]]] = {".npy": lambda path: UNIT_SPACING, SERIES: series_spacing}


def spacing_of(path: Path) -> tuple[float, ...]:
    """Voxel size of a file along ``D, H, W``, without reading its voxels; 1 where the format has none."""
    return _SPACING.get(suffix(path, VOLUME_INPUTS), _nifti_spacing)(path)


def read_volume(path: Path) -> VolumeFile:
    """A NIfTI file, an NPY file (with a spacing of 1) or a DICOM series as it is."""
    return _READ.get(suffix(path, VOLUME_INPUTS), read_nifti)(path)


def read_channels(path: Path) -> VolumeFile:
    """Channels ``(channels, D, H, W)`` of a volume in float32."""
    volume = read_volume(path)
    if volume.array.ndim not in (3, 4):
        raise ValueError(f"{path}: shape {volume.array.shape}; a volume is (D, H, W) or (channels, D, H, W)")
    array = volume.array if volume.array.ndim == 4 else volume.array[None]
    return replace(volume, array=array.astype(np.float32))


def z_score(image: Array, inside: Array) -> Array:
    """Each channel to mean 0 and deviation 1 over the voxels inside; 0 outside.

    Args:
        image: ``(channels, D, H, W)``.
        inside: bool ``(D, H, W)``.

    Example:
        >>> z_score(np.array([[1.0, 3.0, 9.0]]), np.array([True, True, False]))
        array([[-1.,  1.,  0.]], dtype=float32)
    """
    voxels = image[:, inside].astype(np.float64) if inside.any() else np.zeros((len(image), 1))
    shape = (-1, *[1] * inside.ndim)
    mean, std = voxels.mean(axis=1).reshape(shape), np.maximum(voxels.std(axis=1), 1e-8).reshape(shape)
    return np.where(inside, (image - mean) / std, 0).astype(np.float32)


@dataclass(frozen=True)
class VolumeReader:
    """Reads cases of one or several files a volume.

    Attributes:
        content_only: cut to the box of voxels that are not zero in every channel, and normalise within
            those voxels (brains without skull); otherwise the whole volume counts.
        spacing: voxel size that volumes are resampled to; None keeps each file's own.
        mask_values: what the mask files hold for class 0, 1, ...; None if the class numbers themselves.
        ignore_index: value of masks that is kept as it is.
    """

    content_only: bool = False
    spacing: tuple[float, ...] | None = None
    mask_values: tuple[int, ...] | None = field(default=None, metadata=LATER)
    ignore_index: int | None = field(default=None, metadata=LATER)

    def load(self, case: Case) -> tuple[VolumeFile, Array]:
        """All channels ``(channels, D, H, W)`` and the target of a case, as they are in the files."""
        files = [read_channels(path) for path in case.images]
        target = self._target(case, files[0])
        for path, file in zip(case.images, files, strict=True):
            if file.array.shape[1:] != target.shape:
                other = case.images[0].name if case.mask is None else "its mask"
                raise ValueError(
                    f"{path}: the volume is {file.array.shape[1:]}, {other} {target.shape}; make them the same"
                )
            if not np.isfinite(file.array).all():
                raise ValueError(f"{path}: not every voxel is a finite number; repair or leave out the case")
        first = files[0]
        return replace(first, array=np.concatenate([f.array for f in files])), target

    def _target(self, case: Case, image: VolumeFile) -> Array:
        """Labels ``(D, H, W)`` in the order of the image's voxels."""
        if case.mask is not None and suffix(case.mask, (SEGMENTS,)):
            return class_numbers(read_segments(case.mask, image), self.mask_values, self.ignore_index)
        labels = read_labels(case, image.array.shape[1:])
        if case.mask is None:
            return labels
        labels = class_numbers(labels, self.mask_values, self.ignore_index)
        if suffix(case.mask) not in VOLUMES:
            return labels
        try:
            return turned(labels, read_affine(case.mask), image.affine, image.array.shape[1:])
        except ValueError:
            if image.dicom is None:  # headers of NIfTI files are often careless: their voxels are taken in order
                return labels
            raise ValueError(
                f"{case.mask}: lies on another grid than {case.images[0]}; save the mask on the grid of its series"
            ) from None

    def inside(self, image: Array) -> Array:
        """Voxels that count for normalisation ``(D, H, W)``."""
        return np.asarray(image.any(axis=0)) if self.content_only else np.ones(image.shape[1:], dtype=bool)

    def grid(self, native: tuple[int, ...], spacing: tuple[float, ...], box: Any) -> Grid:  # noqa: ANN401
        """Grid that the network sees of a file's; ``box`` None for the whole."""
        zoom = [a / b for a, b in zip(spacing, self.spacing or spacing, strict=True)]
        zoom = [1.0 if abs(z - 1) < 1e-3 else z for z in zoom]  # headers round
        whole = tuple((0, n) for n in native)
        return Grid.fit(native, tuple((int(a), int(b)) for a, b in box) if box else whole, tuple(zoom))

    def __call__(self, case: Case, native: bool) -> Volume:
        """The case, its target on the file's grid (``native``) or on the network's."""
        file, target = self.load(case)
        inside = self.inside(file.array)
        box = nonzero_box(inside) if self.content_only else None
        grid = self.grid(target.shape, file.spacing, box)
        image = grid.image(z_score(file.array, inside))
        valid = grid.valid() if native and grid.cropped else None
        return Volume(image, target if native else grid.target(target), valid, file.geometry, grid)
