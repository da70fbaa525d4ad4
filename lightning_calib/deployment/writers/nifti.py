"""Maps of volumes as NIfTI files on the image's grid."""

import gzip
from pathlib import Path

import numpy as np

from lightning_calib.deployment.maps import Array, Maps, Precision
from lightning_calib.deployment.writers.base import LEVELS, MapWriter, stored
from lightning_calib.kit.files import atomic_path


class NiftiWriter(MapWriter):
    """``<case>_<map>.nii.gz``; the header scales whole numbers back to [0, 1]."""

    name, needs = "nifti", "a volume with an affine"

    def takes(self, maps: Maps) -> bool:
        """Volumes with an affine."""
        return maps.geometry is not None and "affine" in maps.geometry and maps.mask.ndim == 3

    def write(self, start: Path, maps: Maps, precision: Precision, probabilities: bool) -> list[Path]:
        """One file a map, classes last."""
        assert maps.geometry is not None
        affine = np.asarray(maps.geometry["affine"], dtype=np.float64)
        files = [_save(_path(start, name), labels, affine, None) for name, labels in maps.written_labels().items()]
        levels = LEVELS.get(precision)
        found = maps.arrays(probabilities).items()
        return files + [_save(_path(start, name), stored(array, precision), affine, levels) for name, array in found]


def _path(start: Path, name: str) -> Path:
    return start.with_name(f"{start.name}_{name}.nii.gz")


def _save(path: Path, array: Array, affine: Array, levels: int | None) -> Path:
    """Write ``([C,] D, H, W)`` as the file's ``(x, y, z[, C])``; whole numbers are scaled by the header."""
    import nibabel  # of the extra `volumes`

    image = nibabel.Nifti1Image(np.ascontiguousarray(array.T), affine)
    if levels is not None:
        image.header.set_slope_inter(1 / levels, 0)
    with atomic_path(path) as aside:
        aside.write_bytes(gzip.compress(image.to_bytes(), compresslevel=1, mtime=0))  # equal maps give equal files
    return path
