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
        raise ValueError(f"labels {wrong} are out of range; allowed are 0 to {num_classes - 1}{also}")
    return {"counts": [0 if c == ignore_index else found.get(c, 0) for c in range(num_classes)]}


def _fingerprint(case: Case) -> str:
    """Changes when a file of the case does."""
    stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in case.files]
    return hashlib.sha256(repr((stats, case.window)).encode()).hexdigest()


def _try(inspect: Inspect, case: Case) -> CaseFacts:
    try:
        return inspect(case)
    except Exception as error:  # decoders raise whatever they like on a broken file
        text = " ".join(str(error).split()) or type(error).__name__
        named = any(str(file) in text for file in case.files)
        files = ", ".join(str(file) for file in case.files)
        return {"problem": text if named else f"{case.case_id} ({files}): {text}"}


def scan(cases: Sequence[Case], inspect: Inspect, recipe: str) -> tuple[dict[str, CaseFacts], list[str]]:
    """Inspect every case, in threads.

    Args:
        cases: what to inspect; all files must exist.
        inspect: gives JSON-able facts on a case, or raises.
        recipe: everything the facts depend on apart from the files; names the cache.

    Returns:
        Facts by case id, and one line for each case that ``inspect`` refused.
    """
    path = cache_folder() / "checks" / f"{hashlib.sha256(recipe.encode()).hexdigest()[:24]}.json"
    cached: dict[str, CaseFacts] = {}
    with suppress(OSError, ValueError):  # absent, or another process's disk trouble: the cases are read again
        cached = dict(read_json(path))
    prints = {case.case_id: _fingerprint(case) for case in cases if case.files}
    new = [case for case in cases if prints.get(case.case_id) not in cached]
    facts = {i: cached[p] for i, p in prints.items() if p in cached}
    with (
        Progress(transient=True, disable=len(new) < QUICK) as progress,
        ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads,
    ):
        found = threads.map(lambda case: _try(inspect, case), new)
        steps = progress.track(found, total=len(new), description=f"checking {len(new)} cases")
        facts |= {case.case_id: fact for case, fact in zip(new, steps, strict=True)}
    problems = [fact["problem"] for fact in facts.values() if "problem" in fact]
    sound = {i: fact for i, fact in facts.items() if "problem" not in fact}
    if any(case.files and case.case_id in sound for case in new):
        with suppress(OSError):  # a read-only home costs time at the next start, nothing else
            write_json(path, cached | {prints[i]: fact for i, fact in sound.items() if i in prints})
    return sound, problems
