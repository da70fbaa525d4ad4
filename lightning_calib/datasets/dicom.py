"""Reading of DICOM series: one folder a volume, refused where its slices make no regular one.

Slices are put in order of their place along the normal of the slices (PS3.3 C.7.6.2), never by name or number, and
values are those of the modality: rescale slope and intercept, or a table, are applied.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.cases import files_of
from lightning_calib.datasets.pictures import refuse_vast
from lightning_calib.datasets.readers import VolumeFile, is_dicom

if TYPE_CHECKING:
    from pydicom import Dataset

Array = NDArray[Any]

_UNEVEN = 0.05  # of a gap between slices: files round positions
_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM's x and y point left and back, those of NIfTI right and front
_SAME = ("Modality", "Rows", "Columns", "PhotometricInterpretation", "FrameOfReferenceUID")
_NEAR = {"ImageOrientationPatient": 1e-4, "PixelSpacing": 1e-4}
_NEAR_MM = 1e-2  # of places in mm: files round them
_PLACE = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns")


@dataclass(frozen=True)
class Slice:
    """One file of a series, without its pixels."""

    path: Path
    header: "Dataset"

    @property
    def position(self) -> Array:
        """Centre of the first pixel in mm ``(3,)``, in DICOM's axes."""
        return np.array(self.header.ImagePositionPatient, dtype=np.float64)


@dataclass(frozen=True)
class Series:
    """The slices of a volume, in order along their normal.

    Attributes:
        slices: the files.
        step: from one slice to the next in mm ``(3,)``.
    """

    slices: tuple[Slice, ...]
    step: Array

    @property
    def affine(self) -> Array:
        """Of an index (column, row, slice) in mm ``(4, 4)``, in NIfTI's axes."""
        first = self.slices[0]
        row, column = _directions(first.header)
        between_rows, between_columns = (float(gap) for gap in first.header.PixelSpacing)
        matrix = np.eye(4)
        matrix[:3] = np.stack([row * between_columns, column * between_rows, self.step, first.position], axis=1)
        return _TO_RAS @ matrix

    @property
    def spacing(self) -> tuple[float, ...]:
        """Voxel size in mm along slices, rows and columns."""
        return (float(np.linalg.norm(self.step)), *(float(gap) for gap in self.slices[0].header.PixelSpacing))

    def facts(self, folder: Path) -> dict[str, str]:
        """How the series is found again when results are written."""
        return {"folder": str(folder.resolve()), "series": str(self.slices[0].header.SeriesInstanceUID)}


def open_series(folder: Path) -> Series:
    """The slices of a folder in order, without their pixels.

    Raises:
        ValueError: where they are not one whole, regular volume.
    """
    slices = [_open(path) for path in files_of(folder) if is_dicom(path)]
    if not slices:
        raise ValueError(f"{folder}: holds no DICOM file")
    _refuse_several(folder, slices)
    _refuse_mixed(folder, slices)
    _refuse_half_scaled(folder, slices)
    row, column = _directions(slices[0].header)
    normal = np.cross(row, column)
    slices.sort(key=lambda each: float(each.position @ normal))
    return Series(tuple(slices), _step(folder, slices, normal))


def series_spacing(folder: Path) -> tuple[float, ...]:
    """Voxel size of a series along slices, rows and columns."""
    return open_series(folder).spacing


def read_series(folder: Path) -> VolumeFile:
    """The volume ``(slices, rows, columns)`` of a folder's slices, as float32 values of the modality."""
    series = open_series(folder)
    array = np.stack([_pixels(each.path) for each in series.slices])
    return VolumeFile(array, series.spacing, series.affine.tolist(), series.facts(folder))


def read_segments(path: Path, image: VolumeFile) -> Array:
    """Numbers of the segments ``(D, H, W)`` of a DICOM segmentation on the grid of an image, 0 where there is none.

    Raises:
        ValueError: for probabilities in place of masks, segments that overlap, and another grid.
    """
    try:
        import highdicom
    except ImportError as problem:
        raise ValueError('DICOM segmentations need highdicom: pip install "lightning-calib[dicom]"') from problem
    segments = _reading(path, lambda: highdicom.seg.segread(path))
    if str(segments.SegmentationType) == "FRACTIONAL":
        raise ValueError(f"{path}: holds probabilities; masks are binary segments")
    volume = _reading(path, lambda: segments.get_volume(combine_segments=True, dtype=np.uint16))
    affine = (_TO_RAS @ np.asarray(image.affine))[:, [2, 1, 0, 3]]  # of slice, row and column
    grid = highdicom.VolumeGeometry(affine, image.array.shape[-3:], "PATIENT")
    try:
        found: Array = volume.match_geometry(grid, tol=_NEAR_MM).array
    except RuntimeError as problem:
        raise ValueError(f"{path}: lies on another grid than its image; save it on that of its series") from problem
    if np.count_nonzero(found) != np.count_nonzero(volume.array):
        raise ValueError(f"{path}: has segments outside of its image; is it of another series?")
    return found


def _pydicom() -> Any:  # noqa: ANN401
    try:
        import pydicom
        import pydicom.pixels
    except ImportError as problem:
        raise ValueError('DICOM files need pydicom: pip install "lightning-calib[dicom]"') from problem
    return pydicom


def _reading(path: Path, read: Callable[[], Any]) -> Any:  # noqa: ANN401
    """What ``read`` gives; whatever the decoder raises is told with the file."""
    try:
        return read()
    except Exception as problem:
        raise ValueError(f"{path}: cannot be read as DICOM ({' '.join(str(problem).split())})") from problem


def _open(path: Path) -> Slice:
    dicom = _pydicom()
    header = _reading(path, lambda: dicom.dcmread(path, stop_before_pixels=True))
    if int(header.get("NumberOfFrames", 1) or 1) > 1:
        raise ValueError(f"{path}: several frames in one file; save one slice a file, or the volume as NIfTI")
    lacking = [name for name in _PLACE if header.get(name) is None]
    if lacking:
        raise ValueError(f"{path}: has no {', '.join(lacking)}; only slices with a place in space make a volume")
    refuse_vast(path, int(header.Rows), int(header.Columns))
    if int(header.get("SamplesPerPixel", 1)) != 1:
        raise ValueError(f"{path}: colours; only grey slices make a volume")
    return Slice(path, header)


def _pixels(path: Path) -> Array:
    """Values of one slice ``(rows, columns)``."""
    dicom = _pydicom()

    def read() -> Array:
        file = dicom.dcmread(path)
        return np.asarray(dicom.pixels.apply_modality_lut(file.pixel_array, file), dtype=np.float32)

    values: Array = _reading(path, read)
    return values


def _directions(header: "Dataset") -> tuple[Array, Array]:
    """Unit vectors along a row and along a column."""
    six = np.array(header.ImageOrientationPatient, dtype=np.float64)
    return six[:3], six[3:]


def _refuse_several(folder: Path, slices: Sequence[Slice]) -> None:
    counts = Counter(str(each.header.get("SeriesInstanceUID")) for each in slices)
    if len(counts) > 1:
        told = ", ".join(f"{count} files of {uid}" for uid, count in counts.most_common(4))
        raise ValueError(f"{folder}: holds {len(counts)} series ({told}); keep one series a folder")


def _refuse_mixed(folder: Path, slices: Sequence[Slice]) -> None:
    """Stop where slices differ in what a volume has once."""
    first = slices[0]
    for name in (*_SAME, *_NEAR):
        for each in slices:
            ours, theirs = first.header.get(name), each.header.get(name)
            if ours != theirs and not (name in _NEAR and np.allclose(ours, theirs, rtol=0, atol=_NEAR[name])):
                raise ValueError(
                    f"{folder}: slices differ in {name} ({ours} in {first.path.name}, {theirs} in {each.path.name}); "
                    "keep the slices of one volume, or resample them to one grid and save NIfTI"
                )


def _refuse_half_scaled(folder: Path, slices: Sequence[Slice]) -> None:
    """Stop where values could not be made those of the modality alike in all slices."""
    for each in slices:
        if ("RescaleSlope" in each.header) != ("RescaleIntercept" in each.header):
            raise ValueError(
                f"{each.path}: one of RescaleSlope and RescaleIntercept without the other; mend the header"
            )
    for name in ("RescaleSlope", "ModalityLUTSequence"):
        if len({name in each.header for each in slices}) > 1:
            raise ValueError(f"{folder}: some slices have {name}, others have not; mend the headers")


def _step(folder: Path, slices: Sequence[Slice], normal: Array) -> Array:
    """From one slice to the next ``(3,)``; gaps and slanted stacks are refused."""
    places = np.array([each.position for each in slices])
    along = places @ normal
    if len(slices) == 1:
        header = slices[0].header
        thick = header.get("SpacingBetweenSlices") or header.get("SliceThickness")
        if not thick:
            raise ValueError(f"{slices[0].path}: a single slice without SliceThickness; its voxels have no size")
        return normal * float(thick)
    gaps = np.diff(along)
    usual = float(np.median(gaps))
    for one, other, gap in zip(slices, slices[1:], gaps, strict=False):
        if gap < _UNEVEN * usual or usual <= 0:
            raise ValueError(
                f"{folder}: {one.path.name} and {other.path.name} are at the same place; keep one of them (several "
                "times or echoes are volumes of their own)"
            )
    for one, other, gap in zip(slices, slices[1:], gaps, strict=False):
        if abs(gap - usual) > _UNEVEN * usual:
            lost = round(gap / usual) - 1
            what = f"{lost} missing" if lost > 0 else "unevenly spaced"
            raise ValueError(
                f"{folder}: slices are {what} between {one.path.name} and {other.path.name} ({gap:.4g} mm apart, the "
                f"others {usual:.4g}); bring the whole series, or resample it and save NIfTI"
            )
    aside = np.linalg.norm(places - places[0] - np.outer(along - along[0], normal), axis=1)
    if aside.max() > min(map(float, slices[0].header.PixelSpacing)) / 2:
        raise ValueError(
            f"{folder}: slices are shifted against each other by up to {aside.max():.3g} mm (a tilted gantry); "
            "resample the volume to a right-angled grid and save NIfTI"
        )
    return np.asarray((places[-1] - places[0]) / (len(slices) - 1))
