"""Reading of image, mask and volume files into arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.cases import Case, files_of
from lightning_calib.datasets.pictures import Picture, decode, told

Array = NDArray[Any]

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp", ".gif")
Alpha = Literal["drop", "band"]
VOLUMES = (".nii.gz", ".nii")
SUFFIXES = (*PICTURES, ".npy", *VOLUMES)
SERIES = "folders of DICOM slices"  # stands among endings
VOLUME_INPUTS = (*VOLUMES, ".npy", SERIES)
SEGMENTS = ".dcm"  # a DICOM segmentation as a mask


def suffix(path: Path, endings: Sequence[str] = SUFFIXES) -> str:
    """The file's ending among those given, or "" for any other; that of a folder of DICOM slices is ``SERIES``.

    Example:
        >>> suffix(Path("scan.v2.nii.gz")), suffix(Path("Photo.JPG")), suffix(Path("notes.txt"))
        ('.nii.gz', '.jpg', '')
    """
    if SERIES in endings and path.is_dir():
        return SERIES if is_series(path) else ""
    return next((ending for ending in endings if path.name.lower().endswith(ending)), "")


def is_dicom(path: Path) -> bool:
    """Whether a file says that it is DICOM; those that lack the preamble do so by their names alone."""
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM" or path.suffix.lower() == ".dcm"


def is_series(folder: Path) -> bool:
    """Whether a folder holds DICOM files."""
    return folder.is_dir() and any(is_dicom(path) for path in files_of(folder))


def stem(path: Path) -> str:
    """The name of a file without its ending, or of a folder.

    Example:
        >>> stem(Path("scans/case.01.nii.gz"))
        'case.01'
    """
    if path.is_dir():
        return path.name
    return path.name[: len(path.name) - len(suffix(path))] if suffix(path) else path.stem


def list_files(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """Readable files and image folders of a folder by name; an absent folder has none. Hidden files do not count."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if suffix(p, suffixes) and not p.name.startswith("."))


def read_image(path: Path, alpha: Alpha | None = None, channels_first: bool = False) -> Array:
    """A 2D image ``(H, W, channels)`` with all bits and bands of the file.

    Grey pictures get three equal channels, so that they fit among colour ones. Types are the file's where transforms
    know them (8 and 16 bits), float32 otherwise.

    Args:
        path: picture or NPY file.
        alpha: what becomes of transparency that differs from pixel to pixel: an error, nothing (``drop``) or one more
            channel (``band``).
        channels_first: NPY files are ``(channels, H, W)``.

    Raises:
        ValueError: for other shapes, transparency (see ``alpha``), and values that are no finite numbers.
    """
    array = _array(path, channels_first) if suffix(path) == ".npy" else _bands(path, alpha)
    if array.dtype not in (np.uint8, np.uint16):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{path}: not every pixel is a finite number of float32; repair or leave out the case")
    return array


def _bands(path: Path, alpha: Alpha | None) -> Array:
    picture = decode(path)
    bands = np.repeat(picture.bands, 3, axis=2) if picture.bands.shape[2] == 1 else picture.bands
    if picture.alpha is None or alpha == "drop":
        return bands
    if alpha is None:
        raise ValueError(
            f"{path}: transparency that differs from pixel to pixel; save it without, or set alpha: drop to "
            "look at the colours alone, alpha: band to make it a channel"
        )
    return np.concatenate([bands, picture.alpha[..., None].astype(bands.dtype)], axis=2)


def load_array(path: Path) -> Array:
    """The numbers of an NPY file; nothing is unpickled."""
    with told(path):
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("several arrays in one file")
    return array


def _array(path: Path, channels_first: bool) -> Array:
    array = load_array(path)
    shape = "(channels, H, W)" if channels_first else "(H, W, channels)"
    if array.ndim not in (2, 3) or array.dtype.kind not in "uifb":
        raise ValueError(f"{path}: {array.dtype} of shape {array.shape}; a 2D image is (H, W) or {shape}, real numbers")
    return np.atleast_3d(np.moveaxis(array, 0, 2) if channels_first and array.ndim == 3 else array)


def read_shades(path: Path) -> Array:
    """A grey mask ``(H, W)`` as it is, fractions included; of a colour one the first channel, where all are equal."""
    if suffix(path) == ".npy":
        return load_array(path)
    return _grey(path, decode(path))


def read_mask(path: Path) -> Array:
    """A mask of class numbers ``(*S)``, integer; palette images give their indices.

    Raises:
        ValueError: if the file holds colours or fractions instead of class numbers.
    """
    if suffix(path) in VOLUMES:
        mask = read_nifti(path).array
    else:
        mask = load_array(path) if suffix(path) == ".npy" else _labels(path)
    if mask.dtype.kind not in "uifb":
        raise ValueError(f"{path}: values of the type {mask.dtype}; masks hold class numbers")
    if mask.dtype.kind == "f":
        if (mask != np.rint(mask)).any():
            raise ValueError(f"{path}: fractions such as {mask[mask != np.rint(mask)][0]}; masks hold class numbers")
        mask = mask.astype(np.int64)
    return mask.astype(np.uint8) if mask.dtype == bool else mask


def _labels(path: Path) -> Array:
    picture = decode(path)
    if picture.indices is not None:
        return picture.indices
    return _grey(path, picture)


def _grey(path: Path, picture: Picture) -> Array:
    if (picture.bands[..., :1] != picture.bands).any():
        raise ValueError(f"{path}: a colour image; masks hold one class number a pixel")
    return picture.bands[..., 0]


def read_labels(case: Case, shape: tuple[int, ...]) -> Array:
    """What the mask of a case holds ``(*S)``; zeros of a shape where it has none, as a new image."""
    return np.zeros(shape, np.uint8) if case.mask is None else read_mask(case.mask)


@dataclass(frozen=True)
class VolumeFile:
    """A NIfTI file or a DICOM series in array order: the slowest axis of the scanner's grid first.

    Attributes:
        array: ``(D, H, W)``, or ``(channels, D, H, W)`` for a file with several.
        spacing: voxel size in mm along ``D, H, W``.
        affine: the file's 4 x 4 matrix, in the file's own order of axes (x, y, z).
        dicom: folder and identifier of a DICOM series; None for other files.
    """

    array: Array
    spacing: tuple[float, ...]
    affine: list[list[float]]
    dicom: dict[str, str] | None = None

    @property
    def geometry(self) -> dict[str, Any]:
        """What it takes to write arrays back as NIfTI (transpose, then this affine) or beside a DICOM series."""
        facts = {"affine": self.affine, "spacing": list(self.spacing), "axes": "zyx"}
        return facts if self.dicom is None else facts | {"dicom": self.dicom}


def read_affine(path: Path) -> list[list[float]]:
    """The 4 x 4 matrix of a NIfTI file, without reading its voxels."""
    import nibabel  # of the extra `volumes`

    with told(path):
        affine: list[list[float]] = nibabel.load(path).affine.tolist()
    return affine


def read_nifti(path: Path) -> VolumeFile:
    """A volume with its voxel size.

    nibabel hands out ``(x, y, z)``; the axes are reversed, so that slices come first as in nnU-Net.
    """
    import nibabel  # of the extra `volumes`

    with told(path):
        file = nibabel.load(path)
        array = np.asarray(file.dataobj)
    if array.ndim not in (3, 4):
        raise ValueError(f"{path}: shape {array.shape}; a volume has 3 axes, or 4 with channels last")
    zooms = cast(tuple[float, ...], tuple(float(z) for z in file.header.get_zooms()[:3]))
    return VolumeFile(np.ascontiguousarray(array.T), zooms[::-1], file.affine.tolist())
