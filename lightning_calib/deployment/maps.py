"""Calibrated maps as files: NIfTI where there is a geometry, safetensors and pictures elsewhere."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lightning_calib.kit.files import atomic_path
from lightning_calib.kit.tensors import write_tensors

Precision = Literal["float32", "16bit", "8bit"]
Array = NDArray[Any]

# Largest error of a stored probability. float16 has steps of 2^-11 below 1, NIfTI's 16 bits are whole numbers.
STATED_ERROR = {
    ("float32", False): 0.0,
    ("float32", True): 0.0,
    ("16bit", False): 2.0**-12,
    ("16bit", True): 0.5 / 65535,
    ("8bit", False): 0.5 / 255,
    ("8bit", True): 0.5 / 255,
}
_LEVELS = {"16bit": 65535, "8bit": 255}
_UNSIGNED = {"16bit": np.uint16, "8bit": np.uint8}


@dataclass(frozen=True)
class Maps:
    """What is written of a case.

    Attributes:
        probs: calibrated probabilities ``(C, *S)``, float32; of regions ``(R, *S)``.
        mask: predicted labels ``(*S)``.
        geometry: affine and order of axes of a volume, where there is one.
        identity_weight: weight of the uncalibrated probabilities that a guard mixed in; None without a guard.
        mask_values: what the mask's file holds for label 0, 1, ...; None for the labels.
    """

    probs: Tensor
    mask: Tensor
    geometry: dict[str, Any] | None = None
    identity_weight: float | None = None
    mask_values: tuple[int, ...] | None = None

    @property
    def written_mask(self) -> Array:
        """The mask ``(*S)`` as files hold it, in the smallest type that does."""
        labels = self.mask.numpy()
        found = labels if self.mask_values is None else np.asarray(self.mask_values, dtype=np.int64)[labels]
        return found.astype(np.result_type(np.min_scalar_type(found.min()), np.min_scalar_type(found.max())))

    @property
    def is_nifti(self) -> bool:
        """Whether the case goes into NIfTI files."""
        return self.geometry is not None and "affine" in self.geometry and self.mask.ndim == 3

    def arrays(self, probabilities: bool) -> dict[str, Tensor]:
        """Maps of probabilities by the names of their files; all of them, or only what must not be missing."""
        raise NotImplementedError


@dataclass(frozen=True)
class CalibratedMaps(Maps):
    """Maps of classes, with the largest probability ``confidence (*S)``."""

    confidence: Tensor = field(kw_only=True)

    def arrays(self, probabilities: bool) -> dict[str, Tensor]:
        """The confidence, and the probabilities of all classes."""
        return {"confidence": self.confidence} | ({"probs": self.probs} if probabilities else {})


@dataclass(frozen=True)
class RegionMaps(Maps):
    """Maps of regions, by the ``names`` of their files."""

    names: tuple[str, ...] = field(kw_only=True)

    def arrays(self, probabilities: bool) -> dict[str, Tensor]:
        """The probability of each region."""
        return dict(zip(self.names, self.probs, strict=True)) if probabilities else {}


def write_maps(folder: Path, case_id: str, maps: Maps, precision: Precision, probabilities: bool) -> list[Path]:
    """Write a case's files; each appears whole or not at all.

    Args:
        folder: where to.
        case_id: start of the files' names.
        maps: what to write.
        precision: of probabilities and confidence.
        probabilities: write the probabilities of all classes, too.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays = maps.arrays(probabilities)
    if maps.is_nifti:
        return _write_nifti(folder / case_id, maps, arrays, precision)
    files = [_write_tensors(folder / f"{case_id}.safetensors", maps, arrays, precision)]
    if maps.mask.ndim == 2 and maps.probs.shape[0] <= 256:
        pictures = {"mask": maps.written_mask}
        pictures |= {name: _whole(array, 255, np.uint8) for name, array in arrays.items() if array.ndim == 2}
        files += [_write_picture(folder / f"{case_id}_{name}.png", array) for name, array in pictures.items()]
    return files


def _write_tensors(path: Path, maps: Maps, arrays: dict[str, Tensor], precision: Precision) -> Path:
    stored = {name: _encode(array, precision) for name, array in arrays.items()}
    scale = "1" if precision != "8bit" else "255"
    stored["mask"] = torch.from_numpy(maps.written_mask.astype(np.int32))
    write_tensors(path, stored, {"divide_by": scale})
    return path


def _encode(array: Tensor, precision: Precision) -> Tensor:
    if precision == "8bit":
        return torch.from_numpy(_whole(array, 255, np.uint8))
    return array.to(torch.float16 if precision == "16bit" else torch.float32)


def _write_nifti(start: Path, maps: Maps, arrays: dict[str, Tensor], precision: Precision) -> list[Path]:
    assert maps.geometry is not None
    affine = np.asarray(maps.geometry["affine"], dtype=np.float64)
    files = [_save_nifti(start.with_name(f"{start.name}_mask.nii.gz"), maps.written_mask, affine, None)]
    for name, array in arrays.items():
        levels = _LEVELS.get(precision)
        values = array.numpy() if levels is None else _whole(array, levels, _UNSIGNED[precision])
        files.append(_save_nifti(start.with_name(f"{start.name}_{name}.nii.gz"), values, affine, levels))
    return files


def _save_nifti(path: Path, array: Array, affine: Array, levels: int | None) -> Path:
    """Write ``([C,] D, H, W)`` as the file's ``(x, y, z[, C])``; whole numbers are scaled by the header."""
    import nibabel  # of the extra `volumes`

    image = nibabel.Nifti1Image(np.ascontiguousarray(array.T), affine)
    if levels is not None:
        image.header.set_slope_inter(1 / levels, 0)
    with atomic_path(path) as aside:
        aside.write_bytes(gzip.compress(image.to_bytes(), compresslevel=1, mtime=0))  # equal maps give equal files
    return path


def _write_picture(path: Path, array: Array) -> Path:
    with atomic_path(path) as aside:
        Image.fromarray(array).save(aside, format="PNG")
    return path


def _whole(array: Tensor, levels: int, kind: Any) -> Array:  # noqa: ANN401
    """Nearest of ``levels + 1`` equal steps in [0, 1]."""
    return np.asarray(np.rint(array.double().numpy() * levels), dtype=kind)
