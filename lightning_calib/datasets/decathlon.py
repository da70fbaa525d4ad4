"""A task of the Medical Segmentation Decathlon."""

from pathlib import Path
from typing import Any

from lightning_calib.datasets.cases import Case, DataError, Splits, pick
from lightning_calib.datasets.readers import stem
from lightning_calib.datasets.splits import by_fraction
from lightning_calib.datasets.volume_reader import VolumeReader
from lightning_calib.datasets.volumes import MixedSpacing, VolumeFileModule
from lightning_calib.kit.files import FileError
from lightning_calib.kit.typed import read_typed


def read_index(root: Path) -> dict[str, Any]:
    """Contents of a task's ``dataset.json``, with the keys that are needed.

    Raises:
        DataError: if the file is absent, no JSON, or lacks a key.
    """
    path = root / "dataset.json"
    if not path.is_file():
        raise DataError([f"{path}: no such file; root is the folder of one task, with dataset.json"], "decathlon")
    try:
        index = read_typed(path, dict[str, Any], "it is the file of the official release")
    except FileError as error:
        raise DataError([str(error)], "decathlon") from error
    lacking = [key for key in ("labels", "modality", "training") if key not in index]
    if lacking:
        raise DataError([f"{path}: lacks {', '.join(lacking)}"], "decathlon")
    return index


def class_names(labels: dict[str, str], where: Path) -> list[str]:
    """Names in the order of their numbers, which must be 0, 1, 2 and so on."""
    numbers = sorted(int(number) for number in labels)
    if numbers != list(range(len(numbers))):
        raise DataError([f"{where}: labels {numbers}; they must count up from 0"], "decathlon")
    return [labels[str(number)] for number in numbers]


class Decathlon(VolumeFileModule):
    """A task in the official layout: ``dataset.json``, ``imagesTr/``, ``labelsTr/``.

    Every volume is normalised to mean 0 and deviation 1 per channel. The labels of the official test set are
    not public: the pool set is drawn from the labelled cases. Each case counts as a patient of its own: a release
    does not say which volumes are of one person.

    References:
        Antonelli et al.: The Medical Segmentation Decathlon. Nature Communications 2022.

    Args:
        root: folder of the task.
        pool_fraction: share of the labelled cases that form the pool set.
        mixed_spacing: what to do where voxel sizes differ: ``"resample"`` to the median of the training cases
            (logits are brought back), or ``"refuse"``.
        options: those of :class:`~lightning_calib.datasets.volumes.VolumeDataModule`.
    """

    group_levels = ("patient",)
    group_level = "patient"

    def __init__(
        self,
        root: Path | str = "data/Task04_Hippocampus",
        pool_fraction: float = 0.3,
        mixed_spacing: MixedSpacing = "resample",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.volume_reader = Path(root), VolumeReader()
        index = read_index(self.root)
        self.name = str(index.get("name", self.root.name)).lower()
        self.class_names = class_names(index["labels"], self.root / "dataset.json")
        self.in_channels = len(index["modality"])
        cases, problems = self._find(index["training"])
        splits = self._split(cases, pool_fraction)
        if not problems:
            problems = self.settle_spacing(splits, mixed_spacing)
        self.adopt(splits, problems)

    def _find(self, entries: list[dict[str, str]]) -> tuple[list[Case], list[str]]:
        files = [(self.root / entry["image"], self.root / entry["label"]) for entry in entries]
        cases = [Case(stem(image), (image,), label, (stem(image),)) for image, label in files]
        missing = [
            f"{file}: named in dataset.json, but absent" for c in cases for file in c.files if not file.is_file()
        ]
        return [c for c in cases if all(f.is_file() for f in c.files)], missing

    def _split(self, cases: list[Case], pool_fraction: float) -> Splits:
        rest, pool = by_fraction([case.case_id for case in cases], pool_fraction, self.split_seed)
        train, val = by_fraction(rest, self.val_fraction, self.split_seed)
        return Splits(pick(cases, train), pick(cases, val), pick(cases, pool))
