"""Decoding of picture files with all their bits and bands: what a file holds is used or refused, never cut off."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]

_TIFF, _PNG = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), b"\x89PNG\r\n\x1a\n"  # first bytes
_DEEP = 16  # bits that Pillow cuts down in colour PNG files
_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 2**28)  # a header can claim anything; Pillow has the same limit
_ORIENTATION, _UPRIGHT = 274, (0, 1)  # a tag of EXIF and TIFF: how viewers turn the picture; 0 is not known
_GREY = {0: "minus", 1: "plus"}  # TIFF's photometric interpretations that are read as they are, the first upside down
_RGB, _ALPHA_KINDS = 2, (1, 2)  # also TIFF's: colour, and extra samples that are transparency


@dataclass(frozen=True)
class Picture:
    """A decoded picture.

    Attributes:
        bands: ``(H, W, bands)`` in the file's own type; one band for grey.
        alpha: transparency ``(H, W)``; None where the file has none, or all of it is opaque.
        indices: ``(H, W)`` of a picture with a palette or two colours.
    """

    bands: Array
    alpha: Array | None = None
    indices: Array | None = None


def decode(path: Path) -> Picture:
    """Read a picture file.

    Raises:
        ValueError: where the file holds several pictures, or kinds of numbers that no decoder here understands.
    """
    with told(path):
        found = _decoder(path)(path)
    opaque = found.alpha is not None and found.alpha.size and (found.alpha == _opaque(found.alpha)).all()
    return replace(found, alpha=None) if opaque else found


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Name the file in whatever goes wrong with it: decoders raise what they like, mostly without it."""
    try:
        yield
    except ImportError:
        raise
    except Exception as problem:
        if isinstance(problem, ValueError | OSError) and str(path) in str(problem):
            raise
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise ValueError(f"{path}: damaged, or of a kind that is not read ({reason})") from problem


def _decoder(path: Path) -> Callable[[Path], Picture]:
    """What reads a file, by its first bytes; names are often wrong."""
    with path.open("rb") as file:
        head = file.read(25)
    if head[:4] in _TIFF:
        return _tiff
    deep = head.startswith(_PNG) and len(head) == 25 and head[24] == _DEEP
    return _deep_png if deep else _pillow


def _opaque(alpha: Array) -> float:
    return float(np.iinfo(alpha.dtype).max) if alpha.dtype.kind in "ui" else 1.0


def _pillow(path: Path) -> Picture:
    with Image.open(path) as image:
        if getattr(image, "n_frames", 1) > 1:
            raise ValueError(f"{path}: {getattr(image, 'n_frames', 0)} pictures in one file; save one a file")
        _refuse_turned(path, image.getexif().get(_ORIENTATION, 0))
        image.load()
        indices = np.asarray(image).astype(np.uint8) if image.mode in ("P", "1") else None
        if image.mode.startswith(("I", "F")):
            return Picture(np.atleast_3d(np.asarray(image)))
        colours = np.asarray(image.convert("RGB"))
        # Programs order a GIF's palette as they like: where its colours are greys, these are what the file says.
        shades = image.format == "GIF" and bool((colours[..., :1] == colours).all())
        grey = shades or image.mode in ("1", "L", "LA", "La")
        alpha = np.asarray(image.convert("RGBA"))[..., 3] if image.has_transparency_data else None
        return Picture(colours[..., :1] if grey else colours, alpha, None if shades else indices)


def _deep_png(path: Path) -> Picture:
    import cv2  # takes a while to import

    data = np.fromfile(path, np.uint8)
    width, height = struct.unpack(">II", data[16:24].tobytes())
    refuse_vast(path, height, width)
    array = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if array is None:
        raise ValueError(f"{path}: damaged, or no PNG file; save it again")
    array = np.atleast_3d(array)
    if array.shape[2] < 3:
        return Picture(array)
    alpha = array[..., 3] if array.shape[2] == 4 else None
    grey_with_alpha = data[25] == 4
    return Picture(array[..., :1] if grey_with_alpha else array[..., 2::-1], alpha)


def _tiff(path: Path) -> Picture:
    import tifffile  # for TIFF alone

    with tifffile.TiffFile(path) as file:
        series, page = file.series[0], file.pages.first
        if page.photometric not in (*_GREY, _RGB):  # palettes, CMYK and the like
            return _pillow(path)
        _refuse_turned(path, page.tags.valueof(_ORIENTATION, 0))
        refuse_vast(path, *(series.shape[series.axes.index(axis)] for axis in "YX"))
        extra = [int(kind) for kind in page.extrasamples]
        array = _bands_last(path, series.asarray(), series.axes)
        if _GREY.get(page.photometric) == "minus" and array.dtype.kind == "u":
            array = np.iinfo(array.dtype).max - array if page.bitspersample >= 8 else array.max(initial=1) - array
    if array.dtype.kind not in "uifb":
        raise ValueError(f"{path}: values of the type {array.dtype}; save real numbers")
    if page.bitspersample == 1:
        return Picture(array.astype(np.uint8) * 255, indices=array[..., 0].astype(np.uint8))
    array = array.astype(array.dtype.newbyteorder("="))  # the decoders of transforms know the machine's own order only
    if extra and extra[-1] in _ALPHA_KINDS:
        return Picture(array[..., :-1], array[..., -1])
    return Picture(array)


def _bands_last(path: Path, array: Array, axes: str) -> Array:
    """``(H, W, bands)`` of an array whose axes have TIFF's letters; a further axis longer than 1 is refused."""
    for axis in [letter for letter in axes if letter not in "YXSC"]:
        if array.shape[axes.index(axis)] > 1:
            raise ValueError(
                f"{path}: {array.shape[axes.index(axis)]} pages in one file (axes {axes}); save one picture a file, "
                "bands as samples of one page, or volumes as NIfTI"
            )
        array, axes = array.squeeze(axes.index(axis)), axes.replace(axis, "", 1)
    if len(axes) > 3:
        raise ValueError(f"{path}: axes {axes}; a picture has rows, columns and bands")
    order = [axes.index(axis) for axis in "YX"] + [n for n, axis in enumerate(axes) if axis in "SC"]
    return np.atleast_3d(array.transpose(order))


def _refuse_turned(path: Path, orientation: int) -> None:
    """Stop where viewers turn or mirror a picture and arrays do not: its mask may have been drawn on either."""
    if orientation not in _UPRIGHT:
        raise ValueError(
            f"{path}: viewers turn or mirror it (orientation {orientation} in its EXIF data); save it upright, "
            "and see that its mask fits"
        )


def refuse_vast(path: Path, height: int, width: int) -> None:
    """Stop before a header's claim of a size fills the memory."""
    if height * width > _MAX_PIXELS:
        raise ValueError(f"{path}: {height} x {width} pixels, more than {_MAX_PIXELS}; cut it into tiles")
