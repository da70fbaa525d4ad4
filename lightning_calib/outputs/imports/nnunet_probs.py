"""Probabilities that ``nnUNetv2_predict --save_probabilities`` wrote, one folder a fold."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.grids import Box, nonzero_box
from lightning_calib.outputs.imports.arrays import ScoreFile, log_probs, read_array, read_target, sigmoid_log_probs
from lightning_calib.outputs.imports.folder import same_place
from lightning_calib.outputs.imports.loop import CaseSource, Imported, paired_files
from lightning_calib.outputs.imports.nnunet import label_files, read_dataset_facts
from lightning_calib.outputs.imports.orientation import find_orientation
from lightning_calib.outputs.manifest import Member, Representation, StoreError

Array = NDArray[Any]

KEY = "probabilities"


@dataclass
class ProbabilityFolders(CaseSource):
    """Folders of ``<case>.npz`` with the segmentation ``<case><file_ending>`` beside.

    The segmentation is the argmax of the probabilities (of regions, their labels painted where they are above 1/2), so
    that it proves the order of axes; and as an image file it holds the geometry. The ``<case>.pkl`` beside them would
    say the same, but unpickling can run any program: it is never opened.

    Args:
        predictions: one folder a fold.
        targets: folder of label files.
        dataset_json: facts on the data set; None for the file in the first folder.
    """

    predictions: Sequence[Path]
    targets: Path
    dataset_json: Path | None = None

    def __post_init__(self) -> None:
        """Find the files and see that they belong together."""
        if not self.predictions:
            raise StoreError("no folder of predictions: name one for each fold")
        self.facts = read_dataset_facts(self.dataset_json or self.predictions[0] / "dataset.json")
        ending = self.facts.file_ending
        self.files = paired_files("probabilities", self.predictions, (".npz",))
        needed = [folder / f"{case_id}{ending}" for folder in self.predictions for case_id in self.case_ids]
        if lacking := [path for path in needed if not path.is_file()]:
            raise StoreError(
                f"{lacking[0]} and {len(lacking) - 1} more are missing: geometry and order of axes come from the "
                "segmentation that nnU-Net writes beside the probabilities"
            )
        self.labels = label_files(self.targets, ending, self.case_ids)

    @property
    def representation(self) -> Representation:
        """What scores are: of classes log-probabilities, of regions log-odds."""
        return "logits" if self.facts.regions else "log_probs"

    def members(self) -> list[Member]:
        """One a folder."""
        names = [folder.name for folder in self.predictions]
        return [Member(name if names.count(name) == 1 else f"fold {n}") for n, name in enumerate(names)]

    def load(self, case_id: str) -> Imported:
        """Read one case on the grid of the file, with what was cropped marked.

        Scores are log-probabilities ``(M, C, *S)``, or the log-odds ``(M, R, *S)`` of regions.
        """
        target = self.target(case_id)
        members = [self._member(path, case_id, target) for path in self.files[case_id]]
        probs = np.stack([member.array for member in members])
        box = filled_box(probs, bool(self.facts.regions))
        inside = tuple(slice(a, b) for a, b in box)
        whole = all(b - a == n for (a, b), n in zip(box, target.array.shape, strict=True))
        scores = self._scores(probs, f"case {case_id} ({self.files[case_id][0]})")
        predicted = probs[(slice(None), slice(None), *inside)]
        zeros = int(((predicted == 0) | ((predicted == 1) if self.facts.regions else False)).sum())
        valid = np.zeros(target.array.shape, dtype=bool)
        valid[inside] = True
        return Imported(scores, target.array, None if whole else valid, members[0].geometry, zeros)

    def _scores(self, probs: Array, where: str) -> Array:
        if not self.facts.regions:
            return log_probs(probs, where)[0]
        outside, inside, _ = sigmoid_log_probs(probs, where)
        odds: Array = (inside - outside).astype(np.float32)
        return odds

    def _member(self, path: Path, case_id: str, target: ScoreFile) -> ScoreFile:
        """Probabilities ``(C, *S)`` of one fold, turned to the order of axes of the segmentation's file."""
        probs = read_array(path, KEY).array
        segmentation = read_target(path.with_name(f"{case_id}{self.facts.file_ending}"))
        if probs.ndim == segmentation.array.ndim + 2 and probs.shape[1] == 1:  # nnU-Net holds pictures as one slice
            probs = probs[:, 0]
        if len(probs) != len(self.facts.channels):
            raise StoreError(f"{path}: {len(probs)} channels for {', '.join(self.facts.channels)}")
        turned = find_orientation(self.facts.segmentation(probs), segmentation.array, str(path)).apply(probs)
        if turned.shape[1:] != target.array.shape:
            raise StoreError(f"{path}: predicted on {turned.shape[1:]}, labels on {target.array.shape}; use one grid")
        same_place(path, segmentation.geometry, target.geometry)
        return ScoreFile(turned, segmentation.geometry)


def filled_box(probs: Array, regions: bool = False) -> Box:
    """Smallest box with every voxel that is not exactly (1, 0, ..., 0), or 0 in every region, in all members.

    nnU-Net predicts a box of the image, and fills what lies outside with a probability of exactly 1 for the
    background, and 0 for regions. Where nothing is filled the box is the whole.

    Args:
        probs: ``(M, C, *S)``.
        regions: whether channels are regions.

    Example:
        >>> probs = np.array([[[1.0, 1.0, 0.9, 0.4]], [[0.0, 0.0, 0.1, 0.6]]]).swapaxes(0, 1)
        >>> filled_box(probs)
        ((2, 4),)
    """
    fill = 0 if regions else 1
    predicted = ((probs[:, 0] != fill) | (probs[:, 1:] != 0).any(axis=1)).any(axis=0)
    return nonzero_box(predicted)
