"""Score arrays that other programs wrote: read, arranged, brought to log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_calib.datasets.readers import VOLUMES, list_files, read_mask, read_nifti, suffix
from lightning_calib.outputs.manifest import StoreError

Array = NDArray[Any]

ARRAYS = (".npy", ".npz", *VOLUMES)
_TOLERANCE = 1e-2  # of sums over classes: float16 with many classes needs as much


@dataclass(frozen=True)
class ScoreFile:
    """An array and, for NIfTI, where it lies in space."""

    array: Array
    geometry: dict[str, Any] | None = None


def array_files(folder: Path, suffixes: Sequence[str] = ARRAYS) -> dict[str, Path]:
    """Array files of a folder by their names without ending; hidden files do not count.

    Raises:
        StoreError: where there are none, or one name comes with two endings.
    """
    found: dict[str, Path] = {}
    for path in list_files(folder, suffixes):
        name = path.name[: -len(suffix(path, suffixes))]
        if name in found:
            raise StoreError(f"{path} has the same name as {found[name]}: keep one of them")
        found[name] = path
    if not found:
        raise StoreError(f"{folder}: {'no files of ' + ' '.join(suffixes) if folder.is_dir() else 'no such folder'}")
    return found


def read_array(path: Path, key: str | None = None) -> ScoreFile:
    """Array of a NPY, NPZ or NIfTI file; nothing is unpickled.

    Args:
        path: the file. NIfTI arrays come with their axes reversed: classes first, then ``D, H, W``.
        key: name of the array in an NPZ file; None where it holds one only.
    """
    name = path.name.lower()
    if name.endswith(VOLUMES):
        volume = read_nifti(path)
        return ScoreFile(volume.array, volume.geometry)
    try:
        if name.endswith(".npy"):
            found = np.load(path, allow_pickle=False)
        else:
            with np.load(path, allow_pickle=False) as arrays:
                found = arrays[_only(path, arrays.files, key)]
        if found.dtype.kind not in "uifb":
            raise ValueError(f"values of the type {found.dtype}")
    except StoreError:
        raise
    except Exception as problem:  # truncated, pickled or something else altogether: numpy and zipfile differ
        raise StoreError(f"{path} cannot be read as an array of numbers ({problem}): write it again") from problem
    return ScoreFile(found)


def read_target(path: Path) -> ScoreFile:
    """Labels of a mask file, with their geometry for NIfTI."""
    geometry = read_nifti(path).geometry if path.name.lower().endswith(VOLUMES) else None
    return ScoreFile(read_mask(path), geometry)


def _only(path: Path, names: list[str], key: str | None) -> str:
    """The array to take of an NPZ file."""
    if key is not None and key in names:
        return key
    if key is None and len(names) == 1:
        return names[0]
    wanted = "which one is to be taken is not said" if key is None else f"there is no {key!r}"
    raise StoreError(f"{path} holds the arrays {', '.join(names)}, and {wanted}: name one of them with --key")


def arrange(
    array: Array, spatial_dims: int, where: Path, class_axis: int | None = None, member_axis: int | None = None
) -> Array:
    """Bring an array to ``(M, C, *S)``; one without an axis of classes has one channel.

    Args:
        array: scores.
        spatial_dims: number of spatial axes.
        where: the file, for messages.
        class_axis: position of the classes; None for the first axis that is not the members'.
        member_axis: position of the members; None where the array has no such axis.

    Example:
        >>> arrange(np.zeros((32, 40, 3)), 2, Path("a.npy"), class_axis=-1).shape
        (1, 3, 32, 40)
        >>> arrange(np.zeros((3, 5, 32, 40)), 2, Path("a.npy"), member_axis=1).shape
        (5, 3, 32, 40)
        >>> arrange(np.zeros((32, 40)), 2, Path("a.npy")).shape
        (1, 1, 32, 40)
    """
    expected = spatial_dims + 1 + (member_axis is not None)
    one_channel = array.ndim == expected - 1 and class_axis is None
    if array.ndim != expected and not one_channel:
        members = "members, " if member_axis is not None else ""
        raise StoreError(
            f"{where}: shape {array.shape} has {array.ndim} axes where {expected} are expected ({members}classes and "
            f"{spatial_dims} of the target); an axis of members is named by --member_axis"
        )
    member = None if member_axis is None else _axis(member_axis, array.ndim, "member_axis", where)
    if one_channel:
        array, class_axis = array[..., None], -1
    first = next(axis for axis in range(array.ndim) if axis != member)
    classes = first if class_axis is None else _axis(class_axis, array.ndim, "class_axis", where)
    if member is None:
        return np.moveaxis(array, classes, 0)[None]
    if member == classes:
        raise StoreError(f"class_axis and member_axis are both axis {classes} of {array.shape} in {where}")
    return np.moveaxis(array, (member, classes), (0, 1))


def _axis(axis: int, ndim: int, option: str, where: Path) -> int:
    if not -ndim <= axis < ndim:
        raise StoreError(f"{where}: {option} = {axis} of an array with {ndim} axes")
    return axis % ndim


def log_probs(probs: Array, where: str) -> tuple[Array, int]:
    r"""Log-probabilities of probabilities that a file holds.

    .. math:: \log \max(p_c, \varepsilon)

    with ``ε`` the smallest normal number of the array's own type. A probability of 0 is one that rounding has
    taken: its logarithm cannot be recovered, only bounded. Denormal numbers become ``ε`` as well, so that no
    class overtakes another.

    Args:
        probs: ``(..., C, *S)`` with classes on axis 1: ``(M, C, *S)``.
        where: file and case, for messages.

    Returns:
        float32 of the same shape, and how many probabilities were 0.

    Raises:
        StoreError: where values are no probabilities.

    Example:
        >>> values, zeros = log_probs(np.array([[[1.0], [0.0]]], dtype=np.float16), "a.npz")
        >>> values.dtype.name, round(float(values[0, 1, 0]), 2), zeros
        ('float32', -9.7, 1)
    """
    _refuse_others(probs, where)
    sums = probs.sum(axis=1, dtype=np.float64)
    if (off := np.abs(sums - 1)).max() > _TOLERANCE:
        place = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
        raise StoreError(
            f"{where}: the classes' probabilities sum to {sums[place]:.4f} at member {place[0]}, voxel {place[1:]}; "
            "regions that overlap (sigmoid outputs) are no classes: name them and their labels with --regions"
        )
    wide = np.maximum(probs, np.finfo(probs.dtype).tiny).astype(np.promote_types(probs.dtype, np.float32))
    return np.log(wide).astype(np.float32), int((probs == 0).sum())


def sigmoid_log_probs(probs: Array, where: str) -> tuple[Array, Array, int]:
    r"""Log-probabilities outside and inside of sigmoid outputs that a file holds.

    .. math:: \log \max(1 - p, \varepsilon_1), \quad \log \max(p, \varepsilon_0)

    with ``ε_0`` the smallest normal number of the array's own type, and ``ε_1`` half the distance from 1 to the next
    number below: what is closer to 1 was rounded to it.

    Args:
        probs: of any shape.
        where: file and case, for messages.

    Returns:
        Both in float32 or, where the array is wider, as wide; and how many probabilities were 0 or 1.

    Example:
        >>> outside, inside, lost = sigmoid_log_probs(np.array([0.25, 1.0], dtype=np.float32), "a.npz")
        >>> [round(float(value), 2) for value in (inside - outside)], lost
        ([-1.1, 17.33], 1)
    """
    _refuse_others(probs, where)
    facts = np.finfo(probs.dtype)
    wide = probs.astype(np.promote_types(probs.dtype, np.float32))
    outside, inside = np.log(np.maximum(1 - wide, facts.epsneg / 2)), np.log(np.clip(wide, facts.tiny, 1))
    return outside, inside, int(((probs <= 0) | (probs >= 1)).sum())


def _refuse_others(probs: Array, where: str) -> None:
    """Stop where values are no probabilities."""
    if probs.dtype.kind != "f":
        raise StoreError(f"{where}: probabilities of type {probs.dtype}; fractions are expected")
    if bad := int((~np.isfinite(probs)).sum()):
        raise StoreError(f"{where}: {bad:,} of {probs.size:,} probabilities are NaN or infinite; did training diverge?")
    if probs.min() < 0 or probs.max() > 1 + _TOLERANCE:
        raise StoreError(
            f"{where}: values from {probs.min()} to {probs.max()} are no probabilities; import logits with "
            "--representation logits"
        )
