"""The loop of every import: read a case, write a case, go on where it stopped."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from lightning_calib.outputs.folds import Fold
from lightning_calib.outputs.imports.arrays import ARRAYS, ScoreFile, array_files, read_target
from lightning_calib.outputs.manifest import Manifest, Member, StoreError
from lightning_calib.outputs.writer import OutputWriter

Array = NDArray[Any]


@dataclass(frozen=True)
class Imported:
    """One case as another program left it.

    Attributes:
        scores: ``(M, C, *S)``: logits, or log-probabilities where the store is declared so.
        target: class numbers ``(*S)``.
        valid: where the networks predicted, ``(*S)``; None for everywhere.
        geometry: affine, spacing and order of axes, where they are known.
        zeros: probabilities that were 0 and have no logarithm.
        image: ``(channels, *S)``, for people to look at, where it was read.
    """

    scores: Array
    target: Array
    valid: Array | None = None
    geometry: dict[str, Any] | None = None
    zeros: int = 0
    image: Array | None = None


class CaseSource(ABC):
    """Cases of another program; a subclass finds its files in the constructor.

    Attributes:
        files: what is read of a case, by its name.
        labels: label file of each case.
    """

    files: Mapping[str, Any]
    labels: Mapping[str, Path]

    @property
    def case_ids(self) -> list[str]:
        """Names of the cases, sorted."""
        return sorted(self.files)

    @property
    def spatial_dims(self) -> int:
        """Axes of the first label map."""
        return self.target(self.case_ids[0]).array.ndim

    def target(self, case_id: str) -> ScoreFile:
        """Labels of a case, and where they lie."""
        return read_target(self.labels[case_id])

    @abstractmethod
    def members(self) -> list[Member]:
        """The members, in the order of their axis."""

    def fold_records(self) -> Sequence[Fold]:
        """Where each case is scored by one network of a cross-validation: the networks and their cases."""
        return ()

    @abstractmethod
    def load(self, case_id: str) -> Imported:
        """Read one case: scores ``(M, C, *S)`` on the grid of the labels."""


def import_cases(writer: OutputWriter, case_ids: Sequence[str], load: Callable[[str], Imported]) -> Manifest:
    """Write cases that are not written yet, then the manifest.

    Args:
        writer: the store.
        case_ids: all cases that it is to hold.
        load: reads one.

    Returns:
        The manifest of the finished store.
    """
    todo = [case_id for case_id in case_ids if case_id not in writer.done]
    zeros = voxels = 0
    with Progress(transient=True, console=Console(stderr=True)) as progress:
        for number, case_id in enumerate(progress.track(todo, description=f"importing {len(todo)} cases")):
            case = load(case_id)
            if number == 0:
                writer.reserve(len(todo), case.target.shape)
            valid = None if case.valid is None else torch.from_numpy(np.ascontiguousarray(case.valid, dtype=bool))
            scores = torch.from_numpy(np.ascontiguousarray(case.scores))
            target = torch.from_numpy(np.ascontiguousarray(case.target, dtype=np.int64))
            image = None if case.image is None else torch.from_numpy(np.ascontiguousarray(case.image))
            writer.write(case_id, scores, target, valid, case.geometry, image)
            zeros, voxels = zeros + case.zeros, voxels + case.scores.size
    if zeros:
        warnings.warn(_lost(zeros, voxels), stacklevel=2)
    return writer.finish(list(case_ids))


def paired_files(name: str, folders: Sequence[Path], suffixes: Sequence[str] = ARRAYS) -> dict[str, list[Path]]:
    """Files of each case, one a folder; every folder must have all cases."""
    found = [array_files(folder, suffixes) for folder in folders]
    for folder, files in zip(folders[1:], found[1:], strict=True):
        pair(name, list(found[0]), list(files), folder)
    return {case_id: [files[case_id] for files in found] for case_id in found[0]}


def pair(name: str, ids: Sequence[str], others: Sequence[str], where: Path) -> None:
    """Refuse cases that are in one place and not in the other, all of them in one error."""
    lacking, extra = sorted(set(ids) - set(others)), sorted(set(others) - set(ids))
    problems = [f"{case_id}: no {name} in {where}" for case_id in lacking]
    problems += [f"{case_id}: {name} in {where}, but no scores" for case_id in extra]
    if problems:
        rest = f"\n... and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise StoreError("\n".join(problems[:20]) + rest)


def _lost(zeros: int, values: int) -> str:
    return (
        f"{zeros:,} of {values:,} probabilities ({zeros / values:.3%}) were exactly 0 and became the smallest normal "
        "number of their type: rounding has taken them, and no calibrator can bring them back; logits would have them"
    )
