"""Maps beside a DICOM series: segmentations (PS3.3 A.51) and parametric maps (PS3.3 A.75) on its slices.

Patient, study, frame of reference and the places of the slices are those of the series, which the objects refer to.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_calib import __version__
from lightning_calib.datasets.dicom import open_series
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.maps import Array, Maps, Precision
from lightning_calib.deployment.writers.base import LEVELS, MapWriter, stored
from lightning_calib.kit.files import atomic_path

if TYPE_CHECKING:
    from pydicom import Dataset

_STEPS = 255  # of a fractional segmentation, whose values are bytes
_SCHEME = "99LCALIB"  # of codes that are ours: a data set's classes have none of a standard
_NUMBER = 9000  # of the series that are made, far from a scanner's


class DicomWriter(MapWriter):
    """``<case>_<map>.dcm``: probabilities as fractional segments, masks as binary ones, the rest as parametric maps."""

    name, needs = "dicom", "a volume that was read from a DICOM series"

    def takes(self, maps: Maps) -> bool:
        """Volumes of a series."""
        return maps.geometry is not None and "dicom" in maps.geometry and maps.mask.ndim == 3

    def stated_error(self, precision: Precision) -> float:
        """That of fractional segments, which know bytes alone."""
        return 0.5 / _STEPS

    def write(self, start: Path, maps: Maps, precision: Precision, probabilities: bool) -> list[Path]:
        """One object a map, each a series of its own."""
        assert maps.geometry is not None
        series = _Objects(_source(maps.geometry["dicom"]), maps)
        found = {name: series.mask(name, labels.numpy()) for name, labels in maps.labels().items()}
        for name, array in maps.arrays(probabilities).items():
            structures = maps.structures(name)
            if structures:
                found[name] = series.fractions(name, array.numpy(), structures)
            else:
                exact: Precision = "float32" if precision == "float32" else "16bit"  # the format has no 8 bits
                found[name] = series.parametric(name, stored(array, exact), LEVELS.get(exact))
        return [_save(start.with_name(f"{start.name}_{name}.dcm"), made) for name, made in found.items()]


def _source(facts: dict[str, str]) -> list["Dataset"]:
    """Headers of the slices that results refer to, in the order of the volume."""
    folder = Path(facts["folder"])
    if not folder.is_dir():
        raise DeploymentError(f"{folder}: the DICOM series is not there any more; bring it back, or --format nifti")
    headers = [each.header for each in open_series(folder).slices]
    if str(headers[0].SeriesInstanceUID) != facts["series"]:
        raise DeploymentError(f"{folder}: holds another series than the case was read from; bring that back")
    return headers


def _library() -> Any:  # noqa: ANN401
    try:
        import highdicom
    except ImportError as problem:
        wanted = 'DICOM files need highdicom: pip install "lightning-calib[dicom]", or --format nifti'
        raise DeploymentError(wanted) from problem
    return highdicom


class _Objects:
    """Makes the objects of a case.

    Args:
        source: headers of the slices.
        maps: the case.
    """

    def __init__(self, source: list["Dataset"], maps: Maps) -> None:
        self.library, self.source, self.maps, self.made = _library(), source, maps, 0

    def mask(self, name: str, labels: Array) -> Any:  # noqa: ANN401
        """Binary segments of labels ``(D, H, W)``, one a class but the background; of a further mask what is inside."""
        if name in self.maps.decided:
            return self._segmentation(name, "BINARY", labels.astype(np.uint8), [name])
        names = self._classes(int(labels.max()) + 1)
        kept = [label for label in range(len(names)) if label != self.maps.legend.background]
        numbers = np.zeros(len(names), np.uint16)
        numbers[kept] = np.arange(1, len(kept) + 1)
        return self._segmentation(name, "BINARY", numbers[labels], [names[label] for label in kept])

    def fractions(self, name: str, probs: Array, structures: tuple[str, ...]) -> Any:  # noqa: ANN401
        """Fractional segments of probabilities ``([C,] D, H, W)``, one a structure but the background."""
        channels = probs if probs.ndim == 4 else probs[None]
        background = self.maps.legend.background if len(structures) > 1 else None
        kept = [channel for channel in range(len(channels)) if channel != background]
        frames = np.moveaxis(channels[kept], 0, -1)  # (D, H, W, segments)
        return self._segmentation(name, "FRACTIONAL", frames.astype(np.float64), [structures[c] for c in kept])

    def parametric(self, name: str, values: Array, levels: int | None) -> Any:  # noqa: ANN401
        """A map ``(D, H, W)`` of numbers in [0, 1], as whole ones up to ``levels`` or as floating point."""
        from pydicom.sr.codedict import codes

        top: float = levels or 1.0
        mapping = self.library.pm.RealWorldValueMapping(
            lut_label=_short(name),
            lut_explanation=f"{name}, calibrated by {self.maps.legend.made_by}"[:64],
            unit=codes.UCUM.NoUnits,
            value_range=(0, levels) if levels else (0.0, 1.0),
            slope=1 / top,
            intercept=0.0,
        )
        made = self.library.pm.ParametricMap(
            pixel_array=values,
            contains_recognizable_visual_features=False,
            real_world_value_mappings=[mapping],
            voi_lut_transformations=[
                self.library.VOILUTTransformation(window_center=top / 2, window_width=top),
            ],
            **self._common(name),
        )
        made.Laterality = self.source[0].get("Laterality") or ""  # which the library leaves out
        return made

    def _segmentation(self, name: str, kind: str, pixels: Array, structures: list[str]) -> Any:  # noqa: ANN401
        return self.library.seg.Segmentation(
            pixel_array=pixels,
            segmentation_type=kind,
            segment_descriptions=[self._segment(number, text) for number, text in enumerate(structures, start=1)],
            max_fractional_value=_STEPS,
            omit_empty_frames=bool(pixels.any()),  # nothing at all has frames, too
            **self._common(name),
        )

    def _segment(self, number: int, name: str) -> Any:  # noqa: ANN401
        from pydicom.sr.codedict import codes

        return self.library.seg.SegmentDescription(
            segment_number=number,
            segment_label=name[:64],
            segmented_property_category=codes.SCT.AnatomicalStructure,
            segmented_property_type=self.library.sr.CodedConcept(str(number), _SCHEME, name[:64]),
            algorithm_type="AUTOMATIC",
            algorithm_identification=self.library.AlgorithmIdentificationSequence(
                name=f"lightning_calib {self.maps.legend.made_by}"[:64],
                family=codes.DCM.ArtificialIntelligence,
                version=__version__,
            ),
        )

    def _common(self, name: str) -> dict[str, Any]:
        """What every object has; each is a series of its own."""
        self.made += 1
        return {
            "source_images": self.source,
            "series_instance_uid": self.library.UID(),
            "sop_instance_uid": self.library.UID(),
            "series_number": _NUMBER + self.made,
            "instance_number": 1,
            "manufacturer": "lightning_calib",
            "manufacturer_model_name": self.maps.legend.made_by[:64] or "lightning_calib",
            "software_versions": __version__,
            "device_serial_number": "0",  # a program has none
            "content_label": _short(name),
            "content_description": f"{name}, calibrated"[:64],
        }

    def _classes(self, least: int) -> tuple[str, ...]:
        """Names of the labels, as many as a mask may hold."""
        names = self.maps.legend.names
        return (*names, *(f"label {number}" for number in range(len(names), least)))


def _short(name: str) -> str:
    """A code string of at most 16 capitals, digits and underscores."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name.upper())[:16]


def _save(path: Path, made: Any) -> Path:  # noqa: ANN401
    with atomic_path(path) as aside:
        made.save_as(aside, enforce_file_format=True)
    return path
