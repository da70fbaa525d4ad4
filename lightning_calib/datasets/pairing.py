"""Finding of images and the masks that belong to them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.readers import SERIES, SUFFIXES, is_series, list_files, stem


def pair_folders(
    images: Path,
    masks: Path,
    prefix: str = "",
    suffixes: Sequence[str] = SUFFIXES,
    groups: Callable[[str], tuple[str, ...]] = lambda case_id: (),
    endings: tuple[str, str] = ("", ""),
    mask_suffixes: Sequence[str] | None = None,
) -> tuple[list[Case], list[str]]:
    """Cases of two folders in which an image and its mask have the same name up to the ending.

    Args:
        images: folder of images.
        masks: folder of masks.
        prefix: put before the file's name to make the case id.
        suffixes: endings that count.
        groups: groups by case id, coarsest first.
        endings: what the names of images and of masks have at their ends that is no part of the case's.
        mask_suffixes: endings of masks; None for those of images.

    Returns:
        The cases in order of name, and one line for each thing that is wrong.
    """
    pictures, labels = list_files(images, suffixes), list_files(masks, mask_suffixes or suffixes)
    problems = [
        f"{folder}: {'empty' if folder.is_dir() else 'no such folder'}; expected files of {' '.join(suffixes)}"
        for folder, files in ((images, pictures), (masks, labels))
        if not files
    ]
    if SERIES in suffixes and is_series(images):
        return [], [f"{images}: holds DICOM slices; put each series into a folder of its own in {images}"]
    if problems:
        return [], problems
    if images.resolve() == masks.resolve() and endings[0] == endings[1]:
        return [], [f"{images}: images and masks are one folder, so that each image would be its own mask"]
    problems += _twice(pictures) + _twice(labels)
    image_of = {stem(p).removesuffix(endings[0]): p for p in pictures}
    mask_of = {stem(p).removesuffix(endings[1]): p for p in labels}
    if (
        endings == ("", "")
        and not image_of.keys() & mask_of.keys()
        and (hint := _endings(list(image_of), list(mask_of)))
    ):
        return [], [f"{images}, {masks}: no image and mask have one name; set {hint}"]
    problems += [f"{p}: no mask of the same name in {masks}" for s, p in image_of.items() if s not in mask_of]
    problems += [f"{p}: no image of the same name in {images}" for s, p in mask_of.items() if s not in image_of]
    cases = [
        Case(prefix + name, (image_of[name],), mask_of[name], groups(prefix + name))
        for name in image_of
        if name in mask_of
    ]
    return cases, problems


def _endings(images: Sequence[str], masks: Sequence[str]) -> str:
    """The options under which names of images and masks are the same; empty where there are none.

    Example:
        >>> _endings(["21_training", "22_training"], ["21_manual1", "22_manual1"])
        'image_suffix: _training, mask_suffix: _manual1'
    """
    ours, theirs = _common_end(images), _common_end(masks)
    for image, mask in (("", theirs), (ours, ""), (ours, theirs)):
        if {name.removesuffix(image) for name in images} & {name.removesuffix(mask) for name in masks}:
            found = {"image_suffix": image, "mask_suffix": mask}
            return ", ".join(f"{name}: {end}" for name, end in found.items() if end)
    return ""


def _common_end(names: Sequence[str]) -> str:
    """What all names end with; of a single one, what follows its last number."""
    if len(names) == 1:
        return names[0].lstrip("0123456789") if names[0][:1].isdigit() else ""
    shared = 0
    while all(len(name) > shared for name in names) and len({name[-1 - shared] for name in names}) == 1:
        shared += 1
    return names[0][len(names[0]) - shared :]


def _twice(files: Sequence[Path]) -> list[str]:
    """One line for each name that comes with two endings."""
    first: dict[str, Path] = {}
    return [f"{p}: has the same name as {first[stem(p)]}" for p in files if first.setdefault(stem(p), p) != p]
