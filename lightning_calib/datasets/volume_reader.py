"""Reading of volumes: channels are stacked, cut to content, resampled and normalised."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.grids import Grid, nonzero_box
from lightning_calib.datasets.readers import VOLUMES, Nifti, read_labels, read_nifti, suffix

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


def spacing_of(path: Path) -> tuple[float, ...]:
    """Voxel size of a file along ``D, H, W``, without reading its voxels; 1 where the format has none."""
    if suffix(path) not in VOLUMES:
        return UNIT_SPACING
    import nibabel  # of the extra `volumes`

    return tuple(float(z) for z in nibabel.load(path).header.get_zooms()[:3])[::-1]


def read_channels(path: Path) -> Nifti:
    """Channels ``(channels, D, H, W)`` of a NIfTI or NPY file; NPY has a spacing of 1."""
    if suffix(path) == ".npy":
        volume = Nifti(np.load(path, allow_pickle=False), UNIT_SPACING, np.eye(4).tolist())
    else:
        volume = read_nifti(path)
    if volume.array.ndim not in (3, 4):
        raise ValueError(f"{path}: shape {volume.array.shape}; a volume is (D, H, W) or (channels, D, H, W)")
    array = volume.array if volume.array.ndim == 4 else volume.array[None]
    return Nifti(array.astype(np.float32), volume.spacing, volume.affine)


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
    """

    content_only: bool = False
    spacing: tuple[float, ...] | None = None

    def load(self, case: Case) -> tuple[Nifti, Array]:
        """All channels ``(channels, D, H, W)`` and the target of a case, as they are in the files."""
        files = [read_channels(path) for path in case.images]
        target = read_labels(case, files[0].array.shape[1:])
        for path, file in zip(case.images, files, strict=True):
            if file.array.shape[1:] != target.shape:
                other = case.images[0].name if case.mask is None else "its mask"
                raise ValueError(
                    f"{path}: the volume is {file.array.shape[1:]}, {other} {target.shape}; make them the same"
                )
            if not np.isfinite(file.array).all():
                raise ValueError(f"{path}: not every voxel is a finite number; repair or leave out the case")
        first = files[0]
        return Nifti(np.concatenate([f.array for f in files]), first.spacing, first.affine), target

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
