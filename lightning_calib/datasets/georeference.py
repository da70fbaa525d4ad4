"""Where the pixels of a GeoTIFF are on Earth: its coordinate reference system and transform."""

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

_TAGS = (33550, 33922, 34264)  # ModelPixelScale, ModelTiepoint, ModelTransformation
_TIFF = (".tif", ".tiff")

Place = dict[str, Any]  # {"crs": as WKT, or "" where it is not known, "transform": [a, b, c, d, e, f]}


def georeference(
    path: Path, shape: Sequence[int], window: tuple[int, int, int, int] | None = None
) -> dict[str, Place] | None:
    """What a store and maps need to lie where the image lies; None for an image that does not say it.

    The transform takes a column ``x`` and a row ``y`` to coordinates ``(a x + b y + c, d x + e y + f)``.

    Args:
        path: the image's file.
        shape: height and width of the grid whose place is wanted, which may be a resized one.
        window: ``(top, left, height, width)`` of the part of the file that the grid covers; None for all of it.
    """
    if path.suffix.lower() not in _TIFF or not _is_placed(path) or not _has_library():
        return None
    import rasterio  # of the extra `geo`

    with rasterio.open(path) as file:
        (a, b, c, d, e, f), wkt = file.transform[:6], file.crs.to_wkt() if file.crs else ""
        top, left, height, width = window or (0, 0, file.height, file.width)
    across, down = width / shape[1], height / shape[0]
    moved = [a * across, b * down, a * left + b * top + c, d * across, e * down, d * left + e * top + f]
    return {"georeference": {"crs": wkt, "transform": moved}}


def _is_placed(path: Path) -> bool:
    """Whether a file has a transform of its own; read without the extra."""
    import tifffile

    try:
        with tifffile.TiffFile(path) as file:
            return any(tag in file.pages.first.tags for tag in _TAGS)
    except tifffile.TiffFileError:  # another format under this name, which the reader of pictures takes
        return False


@cache
def _has_library() -> bool:
    """Whether the extra is there; said once where it is not."""
    try:
        import rasterio  # noqa: F401
    except ImportError:
        lacking = 'the place of GeoTIFF images on Earth is not kept: pip install "lightning-calib[geo]"'
        warnings.warn(lacking, stacklevel=3)
        return False
    return True
