"""A user's own images and masks in two folders."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_calib.data.cases import Case, DataError, Splits, pick
from lightning_calib.data.checks import Facts
from lightning_calib.data.images import Array, ImageDataModule, ReadImage
from lightning_calib.data.pairing import pair_folders
from lightning_calib.data.readers import PICTURES, VOLUMES, list_files, read_image, read_mask
from lightning_calib.data.splits import Parts, by_group, by_list
from lightning_calib.data.transforms import Normalization
from lightning_calib.data.volume_reader import VolumeReader, read_channels
from lightning_calib.data.volumes import MixedSpacing, VolumeFileModule


def group_cases(cases: list[Case], pattern: str | None) -> tuple[list[Case], list[str]]:
    """Cases with the group that a regular expression finds in their ids, and one line for each it does not fit.

    Example:
        >>> cases, wrong = group_cases([Case("p7_slice3"), Case("other")], r"^(p\\d+)_")
        >>> cases[0].group, wrong
        ('p7', ["other: group_regex '^(p\\\\d+)_' does not fit its name"])
    """
    if pattern is None:
        return [replace(case, group=case.case_id) for case in cases], []
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"group_regex {pattern!r} is no regular expression: {error}") from error
    if compiled.groups < 1:
        raise ValueError(f"group_regex {pattern!r} needs a pair of parentheses around what names the group")
    found = [(case, compiled.search(case.case_id)) for case in cases]
    wrong = [f"{case.case_id}: group_regex {pattern!r} does not fit its name" for case, match in found if not match]
    return [replace(case, group=match.group(1)) for case, match in found if match], wrong


def divide(
    cases: list[Case], lists: tuple[Path | str | None, Path | str | None], fractions: tuple[float, float], seed: int
) -> tuple[Splits, list[str]]:
    """Hold out the pool set, then validation, each by list or by whole groups.

    Args:
        cases: all cases, with groups.
        lists: files that name the pool set's and validation's cases; None to draw them.
        fractions: shares to draw where there is no list.
        seed: seed of the draw.

    Returns:
        The parts, and one line for each group that a list tears apart.
    """

    def hold_out(rest: list[Case], file: Path | str | None, fraction: float) -> Parts:
        groups = {case.case_id: case.group for case in rest}
        return by_group(groups, fraction, seed) if file is None else by_list(groups, Path(file))

    kept, pool = hold_out(cases, lists[0], fractions[0])
    train, val = hold_out(pick(cases, kept), lists[1], fractions[1])
    splits = Splits(pick(cases, train), pick(cases, val), pick(cases, pool))
    parts = {"training": splits.train, "validation": splits.val, "pool": splits.pool}
    homes: dict[str, set[str]] = {}
    for part, members in parts.items():
        for case in members:
            homes.setdefault(case.group, set()).add(part)
    torn = [f"group {g!r} is in {' and '.join(sorted(h))}; list all of it" for g, h in homes.items() if len(h) > 1]
    return splits, torn


@dataclass(frozen=True)
class ReadFolder:
    """Reads a picture or NPY file with its mask.

    Attributes:
        mask_values: what the mask files hold for class 0, 1, ...; None if the class numbers themselves.
        ignore_index: value that is kept as it is.
    """

    mask_values: tuple[int, ...] | None = None
    ignore_index: int | None = None

    def __call__(self, case: Case) -> tuple[Array, Array]:
        """Raw image ``(H, W, channels)`` and class numbers ``(H, W)``."""
        assert case.mask is not None
        return read_image(case.images[0]), self.classes(read_mask(case.mask))

    def classes(self, mask: Array) -> Array:
        """Class numbers of a mask's values."""
        if self.mask_values is None:
            return mask
        strange = np.setdiff1d(mask, [*self.mask_values, *([] if self.ignore_index is None else [self.ignore_index])])
        if strange.size:
            raise ValueError(f"values {strange[:5].tolist()} are not among mask_values {list(self.mask_values)}")
        target = mask.astype(np.int64)
        for number, value in enumerate(self.mask_values):
            target[mask == value] = number
        return target


class Folder(ImageDataModule):
    """Images in ``images/`` and masks of the same names in ``masks/``: PNG, JPEG, TIFF, WebP, NPY.

    Args:
        root: folder of both.
        class_names: names of the classes, in the order of their numbers.
        images: name of the folder of images.
        masks: name of the folder of masks.
        mask_values: what masks hold for class 0, 1, ..., such as ``[0, 255]``; None if the class numbers.
        ignore_label: value in masks that counts nowhere.
        background_class: number of the background class; None where every class counts alike.
        group_regex: expression whose first pair of parentheses finds, in a file's name, what must stay together.
        pool_list: text file that names the pool set's files without ending, one a line; None draws them.
        val_list: the same for validation.
        pool_fraction: share of the cases that form the pool set where there is no list.
        normalize: ``"imagenet"`` for 8-bit RGB, ``"image"`` for anything; None chooses by the first image.
        all_orientations: images have no up or down; augmentation uses all eight orientations.
        options: those of :class:`~lightning_calib.data.images.ImageDataModule`.
    """

    def __init__(
        self,
        root: Path | str,
        class_names: list[str],
        images: str = "images",
        masks: str = "masks",
        mask_values: list[int] | None = None,
        ignore_label: int | None = None,
        background_class: int | None = None,
        group_regex: str | None = None,
        pool_list: Path | str | None = None,
        val_list: Path | str | None = None,
        pool_fraction: float = 0.3,
        normalize: Normalization | None = None,
        all_orientations: bool = False,
        **options: Any,
    ) -> None:
        """Find and check the files."""
        super().__init__(**options)
        self.root, self.class_names, self.name = Path(root), list(class_names), Path(root).name
        self.ignore_index, self.background, self.any_orientation = ignore_label, background_class, all_orientations
        self.mask_values = check_values(mask_values, class_names)
        cases, problems = pair_folders(self.root / images, self.root / masks, suffixes=(*PICTURES, ".npy"))
        if not cases and list_files(self.root / images, VOLUMES):
            problems = [f"{self.root / images}: holds volumes; use lightning_calib.data.folder.VolumeFolder"]
        cases, strange = group_cases(cases, group_regex)
        lists, fractions = (pool_list, val_list), (pool_fraction, self.val_fraction)
        splits, torn = divide(cases, lists, fractions, self.split_seed)
        self._look_at(cases, normalize)
        self.adopt(splits, problems + strange + torn)

    def _look_at(self, cases: list[Case], normalize: Normalization | None) -> None:
        """Take channels and normalisation from the first image that can be read."""
        for case in cases:
            try:
                first = read_image(case.images[0])
            except (OSError, ValueError):  # the check of all files names it
                continue
            self.in_channels = first.shape[2]
            picture = first.dtype == np.uint8 and first.shape[2] == 3
            if normalize == "imagenet" and not picture:
                wrong = f"{first.dtype} with {first.shape[2]} channels; normalize: imagenet needs 8-bit RGB"
                raise DataError([f"{case.images[0]}: {wrong}, set normalize: image"], self.where)
            self.normalization = normalize or ("imagenet" if picture else "image")
            return

    def recipe(self) -> str:
        """Also depends on how masks are read, and on what the first image was."""
        return super().recipe() + repr((self.mask_values, self.in_channels, self.normalization))

    def inspect(self, case: Case) -> Facts:
        """Also refuses images of another kind than the first."""
        facts = super().inspect(case)
        kind = read_image(case.images[0]).dtype
        if self.normalization == "imagenet" and kind != np.uint8:
            raise ValueError(f"{case.images[0]}: {kind}, not 8 bits as the others; set normalize: image")
        return facts

    def reader(self) -> ReadImage:
        """Reads files."""
        return ReadFolder(self.mask_values, self.ignore_index)


def check_values(values: list[int] | None, class_names: list[str]) -> tuple[int, ...] | None:
    """The values as a tuple, if there is one for each class, none twice."""
    if values is not None and (len(values) != len(class_names) or len(set(values)) != len(values)):
        raise ValueError(f"mask_values {values} must hold one value for each of the {len(class_names)} classes")
    return None if values is None else tuple(values)


class VolumeFolder(VolumeFileModule):
    """Volumes in ``images/`` and masks of the same names in ``masks/``: NIfTI, or NPY ``([channels,] D, H, W)``.

    Args:
        root: folder of both.
        class_names: names of the classes, in the order of their numbers.
        images: name of the folder of images.
        masks: name of the folder of masks.
        ignore_label: value in masks that counts nowhere.
        background_class: number of the background class.
        group_regex: expression whose first pair of parentheses finds, in a file's name, what must stay together.
        pool_list: text file that names the pool set's files without ending, one a line; None draws them.
        val_list: the same for validation.
        pool_fraction: share of the cases that form the pool set where there is no list.
        content_only: cut volumes to the box of voxels that are not zero, and normalise within those voxels.
        mixed_spacing: what to do where voxel sizes differ: resample to the median, or refuse.
        options: those of :class:`~lightning_calib.data.volumes.VolumeDataModule`.
    """

    def __init__(
        self,
        root: Path | str,
        class_names: list[str],
        images: str = "images",
        masks: str = "masks",
        ignore_label: int | None = None,
        background_class: int = 0,
        group_regex: str | None = None,
        pool_list: Path | str | None = None,
        val_list: Path | str | None = None,
        pool_fraction: float = 0.3,
        content_only: bool = False,
        mixed_spacing: MixedSpacing = "resample",
        **options: Any,
    ) -> None:
        """Find and check the files."""
        super().__init__(**options)
        self.root, self.class_names, self.name = Path(root), list(class_names), Path(root).name
        self.ignore_index, self.background = ignore_label, background_class
        self.volume_reader = VolumeReader(content_only=content_only)
        cases, problems = pair_folders(self.root / images, self.root / masks, suffixes=(*VOLUMES, ".npy"))
        cases, strange = group_cases(cases, group_regex)
        lists, fractions = (pool_list, val_list), (pool_fraction, self.val_fraction)
        splits, torn = divide(cases, lists, fractions, self.split_seed)
        self.in_channels = _channels(cases)
        problems += strange + torn + self.settle_spacing(splits, mixed_spacing)
        self.adopt(splits, problems)

    def recipe(self) -> str:
        """Also depends on what the first volume was."""
        return super().recipe() + repr(self.in_channels)


def _channels(cases: list[Case]) -> int:
    """Channels of the first volume that can be read."""
    for case in cases:
        try:
            return len(read_channels(case.images[0]).array)
        except Exception:  # whatever a decoder raises: the check of all files names it
            continue
    return 1
