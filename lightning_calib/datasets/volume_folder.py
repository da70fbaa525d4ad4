"""A user's own volumes and masks in two folders."""

from pathlib import Path
from typing import Any

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.checks import check_values
from lightning_calib.datasets.groups import find_groups
from lightning_calib.datasets.pairing import pair_folders
from lightning_calib.datasets.readers import PICTURES, SEGMENTS, VOLUME_INPUTS, VOLUMES, list_files
from lightning_calib.datasets.splits import divide
from lightning_calib.datasets.volume_reader import VolumeReader, read_channels
from lightning_calib.datasets.volumes import MixedSpacing, VolumeFileModule


class VolumeFolder(VolumeFileModule):
    """Volumes in ``images/`` and masks of the same names in ``masks/``.

    Volumes are NIfTI files, NPY files ``([channels,] D, H, W)`` or folders of DICOM slices, one series a folder; masks
    are NIfTI files, NPY files or DICOM segmentations (``.dcm``, whose segments 1, 2, ... are classes). NIfTI masks and
    segmentations on the image's grid are turned as the image is stored.

    Args:
        root: folder of both.
        class_names: names of the classes, in the order of their numbers.
        images: name of the folder of images.
        masks: name of the folder of masks.
        image_suffix: end of the images' names that is no part of the case's, such as ``_training``.
        mask_suffix: the same of masks, such as ``_seg``.
        mask_values: what masks hold for class 0, 1, ..., such as ``[0, 255]``; None if the class numbers themselves.
        ignore_label: value in masks that counts nowhere.
        background_class: number of the background class.
        group_regex: expression whose parentheses find groups in a file's name, such as the patient; several pairs for
            nested groups, coarsest first, which ``(?P<site>...)`` names.
        groups_csv: table of groups in place of the expression: columns ``case_id``, then levels, coarsest first.
        group_level: level of groups that parts keep whole, or ``case`` for none; None for the coarsest.
        pool_list: text file that names the pool set's files without ending, one a line; None draws them.
        val_list: the same for validation.
        pool_fraction: share of the cases that form the pool set where there is no list.
        content_only: cut volumes to the box of voxels that are not zero, and normalise within those voxels.
        mixed_spacing: what to do where voxel sizes differ: resample to the median, or refuse.
        options: those of :class:`~lightning_calib.datasets.volumes.VolumeDataModule`.
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
        ignore_label: int | None = None,
        background_class: int = 0,
        group_regex: str | None = None,
        groups_csv: Path | str | None = None,
        group_level: str | None = None,
        pool_list: Path | str | None = None,
        val_list: Path | str | None = None,
        pool_fraction: float = 0.3,
        content_only: bool = False,
        mixed_spacing: MixedSpacing = "resample",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.class_names, self.name = Path(root), list(class_names), Path(root).name
        self.ignore_index, self.background = ignore_label, background_class
        values = check_values(mask_values, class_names, ignore_label)
        self.volume_reader = VolumeReader(
            content_only=content_only, mask_values=values, ignore_index=None if values is None else ignore_label
        )
        cases, problems = pair_folders(
            self.root / images,
            self.root / masks,
            suffixes=VOLUME_INPUTS,
            endings=(image_suffix, mask_suffix),
            mask_suffixes=(*VOLUMES, ".npy", SEGMENTS),
        )
        if not cases and list_files(self.root / images, PICTURES):
            problems = [f"{self.root / images}: holds pictures; use lightning_calib.datasets.folder.Folder"]
        grouping, strange = find_groups([case.case_id for case in cases], group_regex, groups_csv, group_level)
        self.group_levels, self.group_level = grouping.levels, grouping.whole
        lists, fractions = (pool_list, val_list), (pool_fraction, self.val_fraction)
        splits, wrong = divide(grouping.assign(cases), grouping.depth, lists, fractions, self.split_seed)
        self.in_channels = _channels(cases)
        self.adopt(splits, problems + strange + wrong + self.settle_spacing(splits, mixed_spacing))

    def recipe(self) -> str:
        """Also depends on what the first volume was, and on what masks hold."""
        return super().recipe() + repr((self.in_channels, self.volume_reader.mask_values))


def _channels(cases: list[Case]) -> int:
    """Channels of the first volume that can be read."""
    for case in cases:
        try:
            return len(read_channels(case.images[0]).array)
        except Exception:  # whatever a decoder raises: the check of all files names it
            continue
    return 1
