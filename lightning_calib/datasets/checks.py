"""Reading of every case once, before training, to find what is wrong with any of them.

What was learnt about sound cases (shape, class counts) is kept in a cache, so that the second start, and
every further ensemble member, reads only what is new or changed.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from lightning_calib.datasets.cases import Case
from lightning_calib.kit.files import read_json, write_json

CaseFacts = dict[str, Any]
Inspect = Callable[[Case], CaseFacts]

QUICK = 200  # below so many cases no progress bar is shown


def cache_folder() -> Path:
    """Where facts are cached: ``$LIGHTNING_CALIB_CACHE``, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LIGHTNING_CALIB_CACHE") or Path(base) / "lightning_calib")


class LabelError(ValueError):
    """A mask holds values that are no class.

    Args:
        labels: all values that it holds.
        text: what is wrong with them.
    """

    def __init__(self, labels: Sequence[int], text: str) -> None:
        self.labels = list(labels)
        super().__init__(text)


def label_facts(target: NDArray[Any], num_classes: int, ignore_index: int | None) -> CaseFacts:
    """Voxels of each class.

    Raises:
        ValueError: naming labels that are neither a class nor the ignore label.

    Example:
        >>> label_facts(np.array([[0, 2], [2, 255]]), num_classes=3, ignore_index=255)
        {'counts': [1, 0, 2]}
    """
    labels, counts = np.unique(target, return_counts=True)
    found = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    wrong = [label for label in found if not 0 <= label < num_classes and label != ignore_index]
    if wrong:
        also = "" if ignore_index is None else f", and {ignore_index} for ignored voxels"
        raise LabelError(
            list(found), f"labels {shortened(wrong)} are out of range; allowed are 0 to {num_classes - 1}{also}"
        )
    return {"counts": [0 if c == ignore_index else found.get(c, 0) for c in range(num_classes)]}


def shortened(values: Sequence[int], most: int = 10) -> str:
    """Some values in brackets.

    Example:
        >>> shortened([3, 9]), shortened(range(100), most=3)
        ('[3, 9]', '[0, 1, 2, ... 99] (100 values)')
    """
    if len(values) <= most:
        return str(list(values))
    return f"[{', '.join(map(str, values[:most]))}, ... {values[-1]}] ({len(values)} values)"


def class_numbers(mask: NDArray[Any], values: Sequence[int] | None, ignore_index: int | None) -> NDArray[Any]:
    """Class numbers of a mask that holds other values.

    Args:
        mask: what the file holds.
        values: the value of class 0, 1, ...; None where these are the class numbers.
        ignore_index: value that is kept as it is.

    Example:
        >>> class_numbers(np.array([0, 255, 7]), (0, 255), 7).tolist()
        [0, 1, 7]
    """
    if values is None:
        return mask
    strange = np.setdiff1d(mask, [*values, *([] if ignore_index is None else [ignore_index])])
    if strange.size:
        raise ValueError(f"values {shortened(strange.tolist(), 5)} are not among mask_values {list(values)}")
    target = mask.astype(np.int64)
    for number, value in enumerate(values):
        target[mask == value] = number
    return target


def mask_remedy(values: Sequence[int], num_classes: int) -> str:
    """What to set where masks hold other values than class numbers, in rising order.

    Example:
        >>> mask_remedy([0, 255], 2)
        'set mask_values: [0, 255]'
        >>> mask_remedy(range(256), 2)
        'these are shades of grey: set mask_threshold: 127'
        >>> mask_remedy([0, 1, 255], 2)
        'set ignore_label: 255 where that counts nowhere, or name its class'
    """
    if len(values) == num_classes:
        return f"set mask_values: {list(values)}"
    if num_classes == 2 and len(values) > 8:
        return f"these are shades of grey: set mask_threshold: {max(values) // 2}"
    if len(strange := [value for value in values if not 0 <= value < num_classes]) == 1:
        return f"set ignore_label: {strange[0]} where that counts nowhere, or name its class"
    return f"name {len(values)} classes, or set ignore_label to a value that counts nowhere"


def _fingerprint(case: Case) -> str | None:
    """Changes when a file of the case does; None where one cannot be looked at, such as a link that leads nowhere."""
    try:
        stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in case.files]
    except OSError:
        return None
    return hashlib.sha256(repr((stats, case.window)).encode()).hexdigest()


def _try(inspect: Inspect, case: Case) -> CaseFacts:
    try:
        return inspect(case)
    except Exception as error:  # decoders raise whatever they like on a broken file
        text = " ".join(str(error).split()) or type(error).__name__
        file = next((path for path in case.paths if str(path) in text), None)
        labels = {"labels": error.labels} if isinstance(error, LabelError) else {}
        return {"problem": text.removeprefix(f"{file}: "), "case": case, "file": file, **labels}


def check_values(
    values: Sequence[int] | None, class_names: Sequence[str], ignore_label: int | None
) -> tuple[int, ...] | None:
    """Values of masks as a tuple, if there is one for each class, none twice and none of what counts nowhere."""
    if values is not None and (len(values) != len(class_names) or len(set(values)) != len(values)):
        raise ValueError(f"mask_values {values} must hold one value for each of the {len(class_names)} classes")
    if values is not None and ignore_label in values:
        raise ValueError(f"ignore_label {ignore_label} is also among mask_values {values}; take it out of one of them")
    return None if values is None else tuple(values)


def told_together(broken: Sequence[CaseFacts], counts: Sequence[Sequence[int]], num_classes: int | None) -> list[str]:
    """What is wrong with cases, each reason once.

    Args:
        broken: what was found, by case.
        counts: class counts of the sound cases.
        num_classes: number of classes, where masks are judged.
    """
    masks = [found for found in broken if "labels" in found]
    if num_classes is None or len(masks) < 2:
        masks = []
    values = {label for found in masks for label in found["labels"]}
    values |= {number for each in counts for number, count in enumerate(each) if count}
    reasons: dict[tuple[str, bool], list[CaseFacts]] = {}
    for found in broken:
        if found not in masks:
            reasons.setdefault((found["problem"], found["file"] is not None), []).append(found)
    lines = [_told(reason, founds) for (reason, _), founds in reasons.items()]
    if masks and num_classes is not None:
        held, remedy = sorted(values), mask_remedy(sorted(values), num_classes)
        cases = [found["case"] for found in masks]
        lines.append(f"{_named(cases)}: masks hold {shortened(held)}, classes are 0 to {num_classes - 1}; {remedy}")
    return lines


def _told(reason: str, founds: Sequence[CaseFacts]) -> str:
    """One line on cases that have something wrong in common: it begins with the cases, or with a file."""
    files = sorted(str(found["file"]) for found in founds if found["file"] is not None)
    if not files:
        return f"{_named([found['case'] for found in founds])}: {reason}"
    if len(files) > 1:
        return f"{len(files)} files, such as {files[0]}: {reason}"
    return reason if files[0] in reason else f"{files[0]}: {reason}"


def _named(cases: Sequence[Case]) -> str:
    """One case with its files; of several, some names and the number of the rest."""
    if len(cases) == 1:
        return f"{cases[0].case_id} ({', '.join(map(str, cases[0].paths))})"
    more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
    return f"{len(cases)} cases ({', '.join(sorted(case.case_id for case in cases)[:3])}{more})"


def scan(
    cases: Sequence[Case], inspect: Inspect, recipe: str, num_classes: int | None = None
) -> tuple[dict[str, CaseFacts], list[str]]:
    """Inspect every case, in threads.

    Args:
        cases: what to inspect; all files must exist.
        inspect: gives JSON-able facts on a case, or raises.
        recipe: everything the facts depend on apart from the files; names the cache.
        num_classes: number of classes, for what to do about masks that hold other values.

    Returns:
        Facts by case id, and what is wrong with the cases that ``inspect`` refused, each reason once.
    """
    path = cache_folder() / "checks" / f"{hashlib.sha256(recipe.encode()).hexdigest()[:24]}.json"
    cached: dict[str, CaseFacts] = {}
    with suppress(OSError, ValueError):  # absent, or another process's disk trouble: the cases are read again
        cached = dict(read_json(path))
    prints = {case.case_id: stamp for case in cases if case.files and (stamp := _fingerprint(case))}
    new = [case for case in cases if prints.get(case.case_id) not in cached]
    facts = {i: cached[p] for i, p in prints.items() if p in cached}
    with (
        Progress(transient=True, disable=len(new) < QUICK) as progress,
        ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads,
    ):
        found = threads.map(lambda case: _try(inspect, case), new)
        steps = progress.track(found, total=len(new), description=f"checking {len(new)} cases")
        facts |= {case.case_id: fact for case, fact in zip(new, steps, strict=True)}
    broken = [fact for fact in facts.values() if "problem" in fact]
    sound = {i: fact for i, fact in facts.items() if "problem" not in fact}
    problems = told_together(broken, [fact["counts"] for fact in sound.values() if "counts" in fact], num_classes)
    if any(case.case_id in prints and case.case_id in sound for case in new):
        with suppress(OSError):  # a read-only home costs time at the next start, nothing else
            write_json(path, cached | {prints[i]: fact for i, fact in sound.items() if i in prints})
    return sound, problems
