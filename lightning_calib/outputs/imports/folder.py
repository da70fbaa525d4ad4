"""Folders of arrays, one file a case, as members or with an axis of members."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.georeference import georeference
from lightning_calib.datasets.readers import SUFFIXES, read_image, read_mask
from lightning_calib.datasets.volume_reader import read_channels
from lightning_calib.outputs.imports.arrays import (
    ScoreFile,
    arrange,
    array_files,
    log_probs,
    read_array,
    sigmoid_log_probs,
)
from lightning_calib.outputs.imports.loop import CaseSource, Imported, pair, paired_files
from lightning_calib.outputs.manifest import Member, StoreError

Array = NDArray[Any]
Declared = Literal["logits", "probs"]


@dataclass
class ArrayFolders(CaseSource):
    """Score files of one ensemble.

    Files with one channel, or without an axis of classes, hold the second of two classes: its logit against 0, or its
    probability. With ``regions``, each channel holds those of a region.

    Args:
        scores: one folder a member, with files of the same names; or a single folder.
        representation: what the files hold, logits or probs. It is never guessed from the values.
        targets: folder of label files (.png, .npy, .nii.gz) with the same names.
        valid: folder of masks, not 0 where the networks predicted.
        key: name of the scores in NPZ files that hold several arrays.
        target_key: name of the labels in the NPZ files of the scores, in place of ``targets``.
        class_axis: axis of the classes in each file; None for the first that is not the members'.
        member_axis: axis of the members in each file, where one file holds them all.
        images: folder of the images with the same names: small pictures of them go into the store, and the place of
            GeoTIFF images on Earth.
        regions: for networks with a sigmoid a channel, the labels of the region that each channel stands for, such as
            {whole: [1, 2, 3], core: [2, 3]}.
    """

    scores: Path | list[Path]
    representation: Declared
    targets: Path | None = None
    valid: Path | None = None
    key: str | None = None
    target_key: str | None = None
    class_axis: int | None = None
    member_axis: int | None = None
    images: Path | None = None
    regions: dict[str, list[int]] | None = None

    def __post_init__(self) -> None:
        """Find the files and see that they belong together."""
        if self.representation not in ("logits", "probs"):
            raise StoreError(f"representation = {self.representation!r}: say logits or probs")
        if (self.targets is None) == (self.target_key is None):
            raise StoreError("name the labels by --targets (a folder) or by --target_key (in the NPZ files), not both")
        self.folders = self.scores if isinstance(self.scores, list) else [self.scores]
        if self.member_axis is not None and len(self.folders) != 1:
            raise StoreError(
                f"member_axis with {len(self.folders)} folders of scores: give one, with all members in it"
            )
        self.files = paired_files("scores", self.folders)
        self.labels, self._valid = self._masks("target", self.targets), self._masks("mask", self.valid)
        self._images = self._masks("image", self.images)

    def _masks(self, name: str, folder: Path | None) -> dict[str, Path]:
        """Masks or images of all cases in a folder; none where no folder is named."""
        found = {} if folder is None else array_files(folder, SUFFIXES)
        if folder is not None:
            pair(name, self.case_ids, list(found), folder)
        return found

    def members(self) -> list[Member]:
        """The members: folders by name, or numbers along the member axis."""
        if self.member_axis is None:
            names = [folder.name for folder in self.folders]
            return [Member(name if names.count(name) == 1 else str(n)) for n, name in enumerate(names)]
        first = self.load(self.case_ids[0])
        return [Member(str(number)) for number in range(len(first.scores))]

    def load(self, case_id: str) -> Imported:
        """Read one case."""
        target = self.target(case_id)
        found = [self._scores(file, target) for file in self.files[case_id]]
        shapes = {array.array.shape for array in found}
        if len(shapes) > 1:
            raise StoreError(f"case {case_id}: members of different shapes {sorted(shapes)}; predict them alike")
        where = f"case {case_id} ({self.files[case_id][0]})"
        scores, zeros = self._declared(np.concatenate([array.array for array in found]), where)
        valid = read_mask(self._valid[case_id]) != 0 if self._valid else None
        image, place = self._image(case_id, target.array.shape)
        geometry = next((file.geometry for file in (*found, target) if file.geometry is not None), place)
        return Imported(scores, target.array, valid, geometry, zeros, image)

    def _image(self, case_id: str, shape: tuple[int, ...]) -> tuple[Array | None, dict[str, Any] | None]:
        """Image ``(channels, *S)`` of a case, where images are named, and its place on Earth."""
        if not self._images:
            return None, None
        path = self._images[case_id]
        flat = len(shape) == 2
        image = np.moveaxis(read_image(path, alpha="drop"), 2, 0) if flat else read_channels(path).array
        if image.shape[1:] != shape:
            raise StoreError(
                f"{path}: the image is {image.shape[1:]}, its labels {shape}; give images of the same size"
            )
        return image, georeference(path, shape) if flat else None

    def _declared(self, scores: Array, where: str) -> tuple[Array, int]:
        """Scores ``(M, C, *S)`` as the store holds them, and how many probabilities were lost."""
        one_channel = scores.shape[1] == 1 and self.regions is None
        if self.representation == "logits":
            return (np.concatenate([np.zeros_like(scores), scores], axis=1) if one_channel else scores), 0
        if self.regions is None and not one_channel:
            return log_probs(scores, where)
        outside, inside, zeros = sigmoid_log_probs(scores, where)
        found = np.concatenate([outside, inside], axis=1) if one_channel else inside - outside
        return found.astype(np.float32), zeros

    def _scores(self, path: Path, target: ScoreFile) -> ScoreFile:
        """Scores ``(M, C, *S)`` of a file, on the grid of the target."""
        file = read_array(path, self.key)
        array = arrange(file.array, target.array.ndim, path, self.class_axis, self.member_axis)
        if array.shape[2:] != target.array.shape:
            raise StoreError(
                f"{path}: scores of {array.shape[1]} classes on {array.shape[2:]}, labels on {target.array.shape}: "
                f"say with --class_axis which axis of {file.array.shape} holds the classes, or write both on one grid"
            )
        same_place(path, file.geometry, target.geometry)
        return ScoreFile(array, file.geometry)

    def target(self, case_id: str) -> ScoreFile:
        """Labels of a case, and where they lie."""
        if self.target_key is not None:
            return ScoreFile(read_array(self.files[case_id][0], self.target_key).array)
        return super().target(case_id)


def same_place(path: Path, one: dict[str, Any] | None, other: dict[str, Any] | None) -> None:
    """Refuse scores and labels whose affines differ, where both are known."""
    if one is None or other is None:
        return
    if not np.allclose(one["affine"], other["affine"], atol=1e-3):
        raise StoreError(
            f"{path} and its labels lie at different places (affines {one['affine']} and {other['affine']}): resample "
            "one to the other, or correct the header"
        )
