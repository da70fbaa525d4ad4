"""What cases are made of, by the hashes of their files: a name alone does not say whether a case has changed."""

import gzip
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_calib.datasets.cases import Case, files_of
from lightning_calib.datasets.checks import cache_folder
from lightning_calib.kit.files import FileError, digest, read_json, sha256, write_json

# Hashes of a case's files: {"images": [...], "mask": ...}, with the window where it is one; empty for generated cases.
Content = dict[str, Any]

TRAINED_ON = "cases.json"  # in a member's folder
TRAINING_SIDE = ("train", "val")  # its parts


def image_hash(path: Path) -> str:
    """SHA-256 of a file's content; compressed files are unpacked, since the packing holds a date and a name."""
    if path.suffix != ".gz":
        return sha256(path)
    content = hashlib.sha256()
    with gzip.open(path, "rb") as file:
        while piece := file.read(2**20):
            content.update(piece)
    return content.hexdigest()


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Hash of each file; those of files that have not changed since come from a cache."""
    stamps = {path: _stamp(path) for path in dict.fromkeys(paths)}
    store = cache_folder() / "hashes" / f"{digest(sorted({str(path.parent.resolve()) for path in stamps}))}.json"
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):  # absent or spoilt: the files are read
        known = dict(read_json(store))
    new = [path for path, stamp in stamps.items() if stamp not in known]
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        known |= {stamps[path]: found for path, found in zip(new, threads.map(image_hash, new), strict=True)}
    found = {path: known[stamp] for path, stamp in stamps.items()}
    if new:
        with suppress(OSError):  # a read-only home costs time at the next start, nothing else
            write_json(store, known)
    return found


def _stamp(path: Path) -> str:
    """Changes with the content of a file; the time of its last change of any kind cannot be set by hand."""
    facts = path.stat()
    return digest([str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino])


def contents(cases: Sequence[Case]) -> dict[str, Content]:
    """What each case is made of.

    Example:
        >>> contents([Case("made up")])
        {'made up': {}}
    """
    hashes = hash_files(file for case in cases for file in case.files)
    return {case.case_id: _content(case, hashes) for case in cases}


def _content(case: Case, hashes: Mapping[Path, str]) -> Content:
    if not case.files:
        return {}
    found: Content = {"images": [_combined(path, hashes) for path in case.images]}
    if case.mask is not None:
        found["mask"] = hashes[case.mask]
    return found if case.window is None else found | {"window": list(case.window)}


def _combined(path: Path, hashes: Mapping[Path, str]) -> str:
    """Hash of a file; of a folder that is one image, of what its files hold, whatever their names."""
    return digest(sorted(hashes[file] for file in files_of(path))) if path.is_dir() else hashes[path]


def changes(before: Mapping[str, Content], now: Mapping[str, Content]) -> dict[str, str]:
    """What has changed of the cases that are in both, by id: ``image``, ``mask`` or both.

    Cases of which nothing is known on one side count as unchanged.

    Example:
        >>> changes({"a": {"images": ["1"], "mask": "2"}, "b": {}}, {"a": {"images": ["1"], "mask": "3"}, "b": {}})
        {'a': 'mask'}
    """
    told = {
        case_id: [key for key in ("images", "mask", "window") if before[case_id].get(key) != now[case_id].get(key)]
        for case_id in now
        if before.get(case_id) and now[case_id]
    }
    return {case_id: " and ".join(keys).replace("images", "image") for case_id, keys in told.items() if keys}


def copies(held: Mapping[str, Content], training: Mapping[str, Content]) -> dict[str, str]:
    """Which held-out cases were trained on, by id or by the content of an image, and as which case.

    Example:
        >>> copies({"a": {"images": ["1"]}, "b": {"images": ["2"]}}, {"b2": {"images": ["2"]}})
        {'b': 'b2'}
    """
    owner = {one: case_id for case_id, facts in training.items() for one in facts.get("images", ())}
    found: dict[str, str] = {}
    for case_id, facts in held.items():
        as_image = (owner[one] for one in facts.get("images", ()) if one in owner)
        twin = case_id if case_id in training else next(as_image, None)
        if twin is not None:
            found[case_id] = twin
    return found


def listed(names: Iterable[str], most: int = 5) -> str:
    """Some names and the number of the rest.

    Example:
        >>> listed(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    found = list(names)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def save_training(path: Path, train: Mapping[str, Content], val: Mapping[str, Content]) -> None:
    """Write down what a network is trained on."""
    write_json(path, {"train": dict(train), "val": dict(val)})


def load_training(path: Path, parts: Sequence[str] = TRAINING_SIDE) -> dict[str, Content] | None:
    """Cases that a network was trained or chosen on; None where that was not written down."""
    if not path.is_file():
        return None
    remedy = f"{path} does not say what the member was trained on: bring it back from a copy, or train the member again"
    facts = read_json(path, remedy)
    try:
        return {str(case_id): dict(content) for part in parts for case_id, content in facts[part].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise FileError(remedy) from problem
