"""Finding of images and the masks that belong to them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.readers import SUFFIXES, list_files, stem


def pair_folders(
    images: Path,
    masks: Path,
    prefix: str = "",
    suffixes: Sequence[str] = SUFFIXES,
    groups: Callable[[str], tuple[str, ...]] = lambda case_id: (),
) -> tuple[list[Case], list[str]]:
    """Cases of two folders in which an image and its mask have the same name up to the ending.

    Args:
        images: folder of images.
        masks: folder of masks.
        prefix: put before the file's name to make the case id.
        suffixes: endings that count.
        groups: groups by case id, coarsest first.

    Returns:
        The cases in order of name, and one line for each thing that is wrong.
    """
    pictures, labels = list_files(images, suffixes), list_files(masks, suffixes)
    problems = [
        f"{folder}: {'empty' if folder.is_dir() else 'no such folder'}; expected files of {' '.join(suffixes)}"
        for folder, files in ((images, pictures), (masks, labels))
        if not files
    ]
    if problems:
        return [], problems
    problems += _twice(pictures) + _twice(labels)
    image_of, mask_of = {stem(p): p for p in pictures}, {stem(p): p for p in labels}
    problems += [f"{p}: no mask of the same name in {masks}" for s, p in image_of.items() if s not in mask_of]
    problems += [f"{p}: no image of the same name in {images}" for s, p in mask_of.items() if s not in image_of]
    cases = [
        Case(prefix + name, (image_of[name],), mask_of[name], groups(prefix + name))
        for name in image_of
        if name in mask_of
    ]
    return cases, problems


def _twice(files: Sequence[Path]) -> list[str]:
    """One line for each name that comes with two endings."""
    first: dict[str, Path] = {}
    return [f"{p}: has the same name as {first[stem(p)]}" for p in files if first.setdefault(stem(p), p) != p]
