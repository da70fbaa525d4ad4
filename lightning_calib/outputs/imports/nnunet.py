"""What nnU-Net's ``dataset.json`` says about classes."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_calib.datasets.readers import SUFFIXES
from lightning_calib.kit.files import read_json
from lightning_calib.outputs.imports.arrays import array_files
from lightning_calib.outputs.manifest import StoreError

BACKGROUND = 0  # nnU-Net's own rule


@dataclass(frozen=True)
class DatasetFacts:
    """Classes and files of an nnU-Net data set.

    Attributes:
        name: name of the data set.
        class_names: names in the order of labels and of score channels.
        ignore_index: the ``ignore`` label, where there is one; it has no channel.
        file_ending: ending of images and label files.
    """

    name: str
    class_names: list[str]
    ignore_index: int | None
    file_ending: str


def read_dataset_facts(path: Path) -> DatasetFacts:
    """Read ``dataset.json``; region-based models are refused.

    Raises:
        StoreError: naming what is missing, or why the model has no classes.
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
    _refuse_regions(path, labels)
    ignore = labels.pop("ignore", None)
    by_number = {int(_single(number)): name for name, number in labels.items()}
    if sorted(by_number) != list(range(len(labels))):
        raise StoreError(f"{path}: labels {labels}; they must count up from 0, each with one name")
    names = [by_number[number] for number in range(len(by_number))]
    return DatasetFacts(
        str(facts.get("name", path.parent.name)), names, None if ignore is None else int(ignore), ending
    )


def _refuse_regions(path: Path, labels: dict[str, Any]) -> None:
    regions = [name for name, number in labels.items() if isinstance(number, list) and len(number) > 1]
    if regions:
        raise StoreError(
            f"{path}: {', '.join(regions)} are regions of several labels: such a model has one sigmoid a region, its "
            "outputs do not compete and are no probabilities of classes. Calibrators here need a softmax over "
            "classes: train with plain labels"
        )


def _single(number: Any) -> Any:  # noqa: ANN401  # JSON
    """nnU-Net takes a list of one label for the label."""
    return number[0] if isinstance(number, list) else number


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
