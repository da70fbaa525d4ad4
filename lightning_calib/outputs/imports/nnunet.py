"""What nnU-Net's ``dataset.json`` says about classes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.readers import SUFFIXES
from lightning_calib.kit.files import read_json
from lightning_calib.outputs.imports.arrays import array_files
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.regions import Region

Array = NDArray[Any]

BACKGROUND = 0  # nnU-Net's own rule


@dataclass(frozen=True)
class DatasetFacts:
    """Classes and files of an nnU-Net data set.

    Attributes:
        name: name of the data set.
        class_names: names in the order of labels and, unless there are regions, of score channels.
        ignore_index: the ``ignore`` label, where there is one; it has no channel.
        file_ending: ending of images and label files.
        regions: of a model with a sigmoid a region, what each channel stands for.
        paint: label that each region's voxels get in a segmentation, later ones over earlier ones.
    """

    name: str
    class_names: list[str]
    ignore_index: int | None
    file_ending: str
    regions: tuple[Region, ...] = ()
    paint: Sequence[int] = ()

    @property
    def channels(self) -> list[str]:
        """Names of the score channels."""
        return [region.name for region in self.regions] or self.class_names

    def segmentation(self, probs: Array) -> Array:
        """The labels ``(*S)`` that nnU-Net makes of probabilities ``(C, *S)``."""
        if not self.regions:
            classes: Array = probs.argmax(axis=0)
            return classes
        labels = np.zeros(probs.shape[1:], dtype=np.int64)
        for inside, label in zip(probs > 0.5, self.paint, strict=True):
            labels[inside] = label
        return labels


def read_dataset_facts(path: Path) -> DatasetFacts:
    """Read ``dataset.json``; of region-based models, the regions too.

    Raises:
        StoreError: naming what is missing.
    """
    try:
        facts: dict[str, Any] = read_json(path)
        labels: dict[str, Any] = dict(facts["labels"])
        ending = str(facts["file_ending"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise StoreError(
            f"{path} is not the dataset.json of nnU-Net v2 ({problem!r}): it lies in the folder of predictions and in "
            "that of a trained model; name it with --dataset_json"
        ) from problem
    ignore = labels.pop("ignore", None)
    about = str(facts.get("name", path.parent.name)), None if ignore is None else int(ignore), ending
    held = {name: _several(numbers) for name, numbers in labels.items()}
    if any(len(numbers) > 1 for numbers in held.values()):
        return _region_facts(path, held, facts.get("regions_class_order"), *about)
    by_number = {numbers[0]: name for name, numbers in held.items()}
    if sorted(by_number) != list(range(len(labels))):
        raise StoreError(f"{path}: labels {labels}; they must count up from 0, each with one name")
    return DatasetFacts(about[0], [by_number[number] for number in range(len(by_number))], *about[1:])


def _region_facts(
    path: Path, held: dict[str, list[int]], order: object, name: str, ignore: int | None, ending: str
) -> DatasetFacts:
    """Facts of a region-based model, whose channels are the regions but the background, in the order of the file."""
    held = {region: labels for region, labels in held.items() if set(labels) != {BACKGROUND}}
    numbers = sorted({BACKGROUND}.union(*held.values()))
    if numbers != list(range(len(numbers))):
        raise StoreError(f"{path}: the regions are made of the labels {numbers}; they must count up from 0")
    if not isinstance(order, list) or len(order) != len(held):
        raise StoreError(f"{path}: regions_class_order = {order}; give one label for each of {', '.join(held)}")
    single = {labels[0]: region for region, labels in held.items() if len(labels) == 1}
    names = ["background", *(single.get(number, f"label {number}") for number in numbers[1:])]
    return DatasetFacts(name, names, ignore, ending, Region.all_of(held), [int(label) for label in order])


def _several(numbers: Any) -> list[int]:  # noqa: ANN401  # JSON
    """Labels of an entry: nnU-Net takes a label or a list of them."""
    return [int(number) for number in numbers] if isinstance(numbers, list) else [int(numbers)]


def label_files(folder: Path, ending: str, case_ids: Collection[str]) -> dict[str, Path]:
    """Label files of a folder by case; every case must have one."""
    if ending not in SUFFIXES:
        raise StoreError(
            f"labels of type {ending} in {folder} cannot be read: convert them to one of {' '.join(SUFFIXES)}"
        )
    found = array_files(folder, (ending,))
    if unlabelled := sorted(set(case_ids) - set(found)):
        raise StoreError(f"no labels in {folder} for {len(unlabelled)} case(s): {', '.join(unlabelled[:20])}")
    return found


def image_files(folder: Path, ending: str) -> dict[str, list[Path]]:
    """Image files by case, one a channel: ``<case>_0000<ending>``, ``<case>_0001<ending>``, ..."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"[!.]*_[0-9][0-9][0-9][0-9]{ending}")) if folder.is_dir() else []:
        found.setdefault(path.name.removesuffix(ending)[:-5], []).append(path)
    if not found:
        raise StoreError(f"{folder}: no images named <case>_0000{ending}, as nnU-Net has them")
    return found
