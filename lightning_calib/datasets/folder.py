"""A user's own images and masks in two folders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_calib.datasets.cases import Case, DataError
from lightning_calib.datasets.checks import CaseFacts, check_values
from lightning_calib.datasets.groups import find_groups
from lightning_calib.datasets.images import Array, ImageDataModule, ReadImage, ReadPicture
from lightning_calib.datasets.pairing import pair_folders
from lightning_calib.datasets.readers import PICTURES, SERIES, VOLUMES, Alpha, list_files
from lightning_calib.datasets.splits import divide, divide_by_name
from lightning_calib.datasets.transforms import Normalization

BLACK_AND_WHITE = (0, 255)


class Folder(ImageDataModule):
    """Images in ``images/`` and masks of the same names in ``masks/``: PNG, JPEG, TIFF, WebP, BMP, GIF, NPY.

    Args:
        root: folder of both.
        class_names: names of the classes, in the order of their numbers.
        images: name of the folder of images.
        masks: name of the folder of masks.
        image_suffix: end of the images' names that is no part of the case's, such as ``_training``.
        mask_suffix: the same of masks, such as ``_seg``.
        mask_values: what masks hold for class 0, 1, ..., such as ``[0, 255]``; None if the class numbers.
        mask_threshold: masks are shades of grey: what is above it is the second of two classes. Masks of ``apply``
            then hold ``mask_values``, by default black and white, ``[0, 255]``.
        ignore_label: value in masks that counts nowhere.
        background_class: number of the background class; None where every class counts alike.
        group_regex: expression whose parentheses find groups in a file's name, such as the patient; several pairs for
            nested groups, coarsest first, which ``(?P<site>...)`` names.
        groups_csv: table of groups in place of the expression: columns ``case_id``, then levels, coarsest first.
        group_level: level of groups that parts keep whole, or ``case`` for none; None for the coarsest.
        pool_list: text file that names the pool set's files without ending, one a line; None draws them.
        val_list: the same for validation.
        pool_regex: expression that finds the pool set's files by their names. Groups are then a matter of the pool set
            alone: networks may have seen other images of a group, and validation is drawn image by image.
        pool_fraction: share of the cases that form the pool set where there is no list.
        normalize: ``"imagenet"`` for 8-bit RGB, ``"image"`` for anything; None chooses by the first image.
        alpha: what becomes of transparency that differs from pixel to pixel: ``drop`` it, or make it a ``band``; None
            refuses it.
        channels_first: NPY images are ``(channels, H, W)``.
        all_orientations: images have no up or down (aerial, microscopy): augmentation turns them, too.
        options: those of :class:`~lightning_calib.datasets.images.ImageDataModule`.
    """

    def __init__(
        self,
        root: Path | str,
        class_names: list[str],
        images: str = "images",
        masks: str = "masks",
        image_suffix: str = "",
        mask_suffix: str = "",
        mask_values: list[int] | None = None,
        mask_threshold: float | None = None,
        ignore_label: int | None = None,
        background_class: int | None = None,
        group_regex: str | None = None,
        groups_csv: Path | str | None = None,
        group_level: str | None = None,
        pool_list: Path | str | None = None,
        val_list: Path | str | None = None,
        pool_regex: str | None = None,
        pool_fraction: float = 0.3,
        normalize: Normalization | None = None,
        alpha: Alpha | None = None,
        channels_first: bool = False,
        all_orientations: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.class_names, self.name = Path(root), list(class_names), Path(root).name
        self.ignore_index, self.background, self.any_orientation = ignore_label, background_class, all_orientations
        if mask_threshold is not None and (ignore_label is not None or len(class_names) != 2):
            raise ValueError("mask_threshold is for two classes, without ignore_label")
        shades = list(BLACK_AND_WHITE) if mask_threshold is not None and mask_values is None else mask_values
        self.mask_values = check_values(shades, class_names, ignore_label)
        self.picture_reader = ReadPicture(self.mask_values, ignore_label, alpha, channels_first, mask_threshold)
        cases, problems = pair_folders(
            self.root / images, self.root / masks, suffixes=(*PICTURES, ".npy"), endings=(image_suffix, mask_suffix)
        )
        if not cases and list_files(self.root / images, (*VOLUMES, SERIES)):
            problems = [f"{self.root / images}: holds volumes; use lightning_calib.datasets.volume_folder.VolumeFolder"]
        grouping, strange = find_groups([case.case_id for case in cases], group_regex, groups_csv, group_level)
        self.group_levels, self.group_level = grouping.levels, grouping.whole
        lists, fractions = (pool_list, val_list), (pool_fraction, self.val_fraction)
        grouped = grouping.assign(cases)
        if pool_regex is not None and any(lists):
            raise ValueError("pool_regex says what the pool set is: leave pool_list and val_list out")
        if pool_regex is None:
            splits, wrong = divide(grouped, grouping.depth, lists, fractions, self.split_seed)
        else:
            splits, wrong = divide_by_name(grouped, pool_regex, self.val_fraction, self.split_seed), []
        self._look_at(cases, normalize)
        self.adopt(splits, problems + strange + wrong)

    def _look_at(self, cases: list[Case], normalize: Normalization | None) -> None:
        """Take channels and normalisation from the first image that can be read."""
        for case in cases:
            try:
                first = self.picture_reader(replace(case, mask=None))[0]
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
        """Also depends on how files are read, and on what the first image was."""
        return super().recipe() + repr((self.picture_reader, self.in_channels, self.normalization))

    def describe(self, case: Case, image: Array, target: Array) -> CaseFacts:
        """Also refuses images of another kind than the first."""
        facts = super().describe(case, image, target)
        if self.normalization == "imagenet" and image.dtype != np.uint8:
            raise ValueError(f"{case.images[0]}: {image.dtype}, not 8 bits as the others; set normalize: image")
        return facts

    def reader(self) -> ReadImage:
        """Reads files."""
        return self.picture_reader
