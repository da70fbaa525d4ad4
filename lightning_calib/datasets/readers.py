"""Reading of image, mask and volume files into arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lightning_calib.datasets.cases import Case

Array = NDArray[Any]

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")
VOLUMES = (".nii.gz", ".nii")
SUFFIXES = (*PICTURES, ".npy", *VOLUMES)


def suffix(path: Path, endings: Sequence[str] = SUFFIXES) -> str:
    """The file's ending among those given, or "" for any other.

    Example:
        >>> suffix(Path("scan.v2.nii.gz")), suffix(Path("Photo.JPG")), suffix(Path("notes.txt"))
        ('.nii.gz', '.jpg', '')
    """
    return next((ending for ending in endings if path.name.lower().endswith(ending)), "")


def stem(path: Path) -> str:
    """The file's name without its ending.

    Example:
        >>> stem(Path("scans/case.01.nii.gz"))
        'case.01'
    """
    return path.name[: len(path.name) - len(suffix(path))] if suffix(path) else path.stem


def list_files(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """Readable files of a folder in order of name; an absent folder has none. Hidden files do not count."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if suffix(p, suffixes) and not p.name.startswith("."))


def _picture(path: Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
        return image


def read_rgb(path: Path) -> Array:
    """An 8-bit colour image ``(H, W, 3)``; grey images get three equal channels, transparency is dropped.

    Raises:
        ValueError: if the file holds more than 8 bits a channel.
    """
    image = _picture(path)
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"{path}: {image.mode} holds more than 8 bits a channel; save it as NPY instead")
    return np.asarray(image.convert("RGB"))


def read_image(path: Path) -> Array:
    """A 2D image ``(H, W, channels)``: uint8 for pictures, the file's own type for NPY."""
    if suffix(path) != ".npy":
        return read_rgb(path)
    array = np.load(path, allow_pickle=False)
    if array.ndim not in (2, 3):
        raise ValueError(f"{path}: shape {array.shape}; a 2D image is (H, W) or (H, W, channels)")
    return np.atleast_3d(array)


def read_mask(path: Path) -> Array:
    """A mask of class numbers ``(*S)``, integer; palette images give their indices.

    Raises:
        ValueError: if the file holds colours or fractions instead of class numbers.
    """
    if suffix(path) in VOLUMES:
        mask = read_nifti(path).array
    else:
        mask = np.load(path, allow_pickle=False) if suffix(path) == ".npy" else np.asarray(_picture(path))
        if suffix(path) != ".npy" and mask.ndim == 3:
            if (mask[..., :1] != mask[..., :3]).any():
                raise ValueError(f"{path}: a colour image; masks hold one class number a pixel")
            mask = mask[..., 0]
    if mask.dtype.kind == "f":
        if (mask != np.rint(mask)).any():
            raise ValueError(f"{path}: fractions such as {mask[mask != np.rint(mask)][0]}; masks hold class numbers")
        mask = mask.astype(np.int64)
    return mask.astype(np.uint8) if mask.dtype == bool else mask


def read_labels(case: Case, shape: tuple[int, ...]) -> Array:
    """What the mask of a case holds ``(*S)``; zeros of a shape where it has none, as a new image."""
    return np.zeros(shape, np.uint8) if case.mask is None else read_mask(case.mask)


@dataclass(frozen=True)
class Nifti:
    """A NIfTI file in array order: the slowest axis of the scanner's grid first.

    Attributes:
        array: ``(D, H, W)``, or ``(channels, D, H, W)`` for a file with several.
        spacing: voxel size in mm along ``D, H, W``.
        affine: the file's 4 x 4 matrix, in the file's own order of axes (x, y, z).
    """

    array: Array
    spacing: tuple[float, ...]
    affine: list[list[float]]

    @property
    def geometry(self) -> dict[str, Any]:
        """What it takes to write arrays back as NIfTI (transpose, then this affine)."""
        return {"affine": self.affine, "spacing": list(self.spacing), "axes": "zyx"}


def read_nifti(path: Path) -> Nifti:
    """A volume with its voxel size.

    nibabel hands out ``(x, y, z)``; the axes are reversed, so that slices come first as in nnU-Net.
    """
    import nibabel  # of the extra `volumes`

    file = nibabel.load(path)
    array = np.asarray(file.dataobj)
    if array.ndim not in (3, 4):
        raise ValueError(f"{path}: shape {array.shape}; a volume has 3 axes, or 4 with channels last")
    zooms = cast(tuple[float, ...], tuple(float(z) for z in file.header.get_zooms()[:3]))
    return Nifti(np.ascontiguousarray(array.T), zooms[::-1], file.affine.tolist())
