"""What writes the maps of a case, and the table of those that there are."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.maps import Array, Maps, Precision
from lightning_calib.kit.registry import Registry

LEVELS: dict[str, int] = {"16bit": 65535, "8bit": 255}  # largest whole number that stands for 1
UNSIGNED: dict[str, Any] = {"16bit": np.uint16, "8bit": np.uint8}
AUTO, LAST = "auto", "arrays"  # the writer that takes everything


class MapWriter(ABC):
    """Writes the maps of a case in one format; each file appears whole or not at all.

    Attributes:
        name: what ``--format`` calls it.
        needs: what an image must have, for the message where it does not.
    """

    name: ClassVar[str]
    needs: ClassVar[str]

    @abstractmethod
    def takes(self, maps: Maps) -> bool:
        """Whether the format can hold these maps with their geometry."""

    def stated_error(self, precision: Precision) -> float:
        """Largest error of a stored probability; here of whole numbers."""
        return 0.5 / LEVELS[precision] if precision in LEVELS else 0.0

    @abstractmethod
    def write(self, start: Path, maps: Maps, precision: Precision, probabilities: bool) -> list[Path]:
        """Write the files of a case.

        Args:
            start: folder, and start of the files' names.
            maps: what to write.
            precision: of probabilities and confidence.
            probabilities: write the probabilities of all classes, too.

        Returns:
            The files.
        """


def _check(name: str, cls: Any) -> None:  # noqa: ANN401
    if not (isinstance(cls, type) and issubclass(cls, MapWriter)):
        raise TypeError(f"the writer {name} is {cls!r}, not a subclass of MapWriter")


_HERE = "lightning_calib.deployment.writers"
# The first that takes a case's maps writes them, unless a user names another.
WRITERS: Registry[type[MapWriter]] = Registry(
    "format of maps",
    "lightning_calib.writers",
    {
        "dicom": f"{_HERE}.dicom:DicomWriter",
        "nifti": f"{_HERE}.nifti:NiftiWriter",
        "geotiff": f"{_HERE}.geotiff:GeoTiffWriter",
        "arrays": f"{_HERE}.arrays:ArrayWriter",
    },
    _check,
)


def register_writer(cls: type[MapWriter]) -> type[MapWriter]:
    """Add a format of one's own; also a decorator."""
    return WRITERS.register(cls.name, cls)


def writer_for(maps: Maps, wanted: str = AUTO) -> MapWriter:
    """The writer of a case's maps.

    Args:
        maps: the maps.
        wanted: name of a format; ``auto`` for the one that fits what the image was read from.

    Raises:
        DeploymentError: where the format cannot hold these maps.
    """
    if wanted == AUTO:
        fitting = (writer for name in WRITERS if name != LAST and (writer := WRITERS[name]()).takes(maps))
        return next(fitting, None) or WRITERS[LAST]()
    writer = WRITERS[wanted]()
    if not writer.takes(maps):
        raise DeploymentError(f"--format {wanted} needs {writer.needs}, which this case has not; leave --format out")
    return writer


def whole(array: Tensor, levels: int, kind: Any) -> Array:  # noqa: ANN401
    """Nearest of ``levels + 1`` equal steps in [0, 1]."""
    return np.asarray(np.rint(array.double().numpy() * levels), dtype=kind)


def stored(array: Tensor, precision: Precision) -> Array:
    """Probabilities as a format of whole numbers stores them; float32 as they are."""
    levels = LEVELS.get(precision)
    return array.numpy() if levels is None else whole(array, levels, UNSIGNED[precision])
