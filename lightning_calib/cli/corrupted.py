"""Where ``train.py predict`` writes, and what it does to the images first."""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from lightning_calib.cli.run_folder import RunError
from lightning_calib.datasets.base import SegmentationDataModule
from lightning_calib.datasets.corruptions import CORRUPTION, EXAMPLE, Corruption, Severity
from lightning_calib.datasets.images import ImageDataModule
from lightning_calib.kit.files import atomic_path, write_json


@dataclass(frozen=True)
class Place:
    """An output store to be written.

    Attributes:
        outputs: its folder.
        dataset: name of the data set; that of a corrupted one says so, so that stores are never mixed.
        corruption: what happens to the images; None where nothing does.
    """

    outputs: Path
    dataset: str
    corruption: Corruption | None = None

    def describe(self, data: SegmentationDataModule) -> None:
        """Leave kinds, parameters and a clean image beside the store's manifest: the report shows what they do."""
        if self.corruption is None or not isinstance(data, ImageDataModule):
            return
        image, _ = data.reader()(data.splits.pool[0])
        with atomic_path(self.outputs / EXAMPLE) as aside:
            Image.fromarray(image).save(aside, format="PNG")
        write_json(self.outputs / CORRUPTION, self.corruption.describe(data.pool_ids))


def corrupted(data: SegmentationDataModule, outputs: Path, severity: Severity | None, seed: int = 0) -> Place:
    """Have a data module corrupt its images, where a severity is given.

    Args:
        data: the images; labels stay as they are.
        outputs: where outputs for clean images go.
        severity: ``mild``, ``strong``, or None for clean images.
        seed: seed of the kinds and the noise.

    Returns:
        Where to write. Other seeds have other names of the data set, so that an interrupted prediction cannot be
        continued with them.
    """
    if severity is None:
        return Place(outputs, data.name)
    if not isinstance(data, ImageDataModule):
        raise RunError(
            f"--corruption changes 8-bit RGB images; {data.name} has none (its data are {data.spatial_dims}D)"
        )
    if data.raw_transform is not None:
        raise RunError("--corruption and data.raw_transform both change the raw images: give one of them")
    corruption = Corruption(severity, seed)
    data.raw_transform = corruption
    name = f"{data.name}-{severity}" + (f"-seed{seed}" if seed else "")
    return Place(outputs.with_name(f"{outputs.name}-{severity}"), name, corruption)
