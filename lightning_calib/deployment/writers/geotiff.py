"""Maps of 2D images as GeoTIFF files at the image's place on Earth."""

from pathlib import Path
from typing import Any

import numpy as np

from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.maps import Array, Maps, Precision
from lightning_calib.deployment.writers.base import LEVELS, MapWriter, stored
from lightning_calib.kit.files import atomic_path


class GeoTiffWriter(MapWriter):
    """``<case>_<map>.tif``, a band a class; the bands' scale brings whole numbers back to [0, 1]."""

    name, needs = "geotiff", "a 2D image that was read from a GeoTIFF file"

    def takes(self, maps: Maps) -> bool:
        """Images with a place on Earth."""
        return maps.geometry is not None and "georeference" in maps.geometry and maps.mask.ndim == 2

    def write(self, start: Path, maps: Maps, precision: Precision, probabilities: bool) -> list[Path]:
        """One file a map."""
        assert maps.geometry is not None
        place, levels = maps.geometry["georeference"], LEVELS.get(precision)
        files = [
            _save(_path(start, name), labels[None], place, (name,)) for name, labels in maps.written_labels().items()
        ]
        for name, array in maps.arrays(probabilities).items():
            bands = array if array.ndim == 3 else array[None]
            names = maps.structures(name) or (name,)
            files.append(_save(_path(start, name), stored(bands, precision), place, names, 1 / (levels or 1)))
        return files


def _path(start: Path, name: str) -> Path:
    return start.with_name(f"{start.name}_{name}.tif")


def _save(path: Path, bands: Array, place: dict[str, Any], names: tuple[str, ...], scale: float = 1.0) -> Path:
    """Write ``(bands, H, W)``."""
    try:
        import rasterio
    except ImportError as problem:
        wanted = 'GeoTIFF files need rasterio: pip install "lightning-calib[geo]", or --format arrays'
        raise DeploymentError(wanted) from problem
    facts = {"crs": place["crs"] or None, "transform": rasterio.Affine(*place["transform"]), "compress": "deflate"}
    facts |= {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2], "dtype": bands.dtype}
    with atomic_path(path) as aside, rasterio.open(aside, "w", driver="GTiff", **facts) as file:
        file.write(np.ascontiguousarray(bands))
        for number, name in enumerate(names, start=1):
            file.set_band_description(number, name)
        if scale != 1:
            file.scales = (scale,) * len(bands)
    return path
