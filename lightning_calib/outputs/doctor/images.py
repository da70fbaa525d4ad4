"""The same image in training and in the pool set, by hash."""

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from lightning_calib.datasets.cases import Splits
from lightning_calib.kit.files import FileError, sha256, write_text
from lightning_calib.kit.typed import read_typed
from lightning_calib.outputs.doctor.finding import Finding
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.store import OutputStore

IMAGES = "images.json"  # beside the manifest: hashes of the images behind a store, where they are known

Hashes = dict[str, str]  # name of an image -> hash of its content


def image_hash(path: Path) -> str:
    """SHA-256 of a file's content; compressed files are unpacked, since the packing holds a date and a name."""
    if path.suffix != ".gz":
        return sha256(path)
    digest = hashlib.sha256()
    with gzip.open(path, "rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def files_below(folder: Path) -> list[Path]:
    """All files below a folder, hidden ones left out.

    Raises:
        StoreError: where there is no file.
    """
    files = sorted(path for path in folder.rglob("[!.]*") if path.is_file()) if folder.is_dir() else []
    if not files:
        raise StoreError(f"{folder} holds no images to hash: name the folder of the image files")
    return files


def hash_folder(folder: Path) -> Hashes:
    """Hashes of all files below a folder."""
    return {str(path): image_hash(path) for path in files_below(folder)}


def record_images(outputs: Path, pool: Mapping[str, Iterable[Path]], training: Iterable[Path]) -> None:
    """Write down the hashes of the images of a store and of those that its networks were trained on.

    Args:
        outputs: folder of the store.
        pool: image files by case id.
        training: image files of training and validation.
    """
    hashed = cache(image_hash)  # several cases may be windows of one file
    facts = {
        "pool": {f"{case_id}: {path.name}": hashed(path) for case_id, files in pool.items() for path in files},
        "training": {str(path): hashed(path) for path in training},
    }
    write_text(outputs / IMAGES, json.dumps(facts, indent=1, sort_keys=True) + "\n")


def remember_images(outputs: Path, splits: Splits) -> None:
    """Record the images of a data set's parts (see :func:`record_images`); generated images have no files."""
    pool = {case.case_id: case.images for case in splits.pool if case.images}
    training = {path for case in (*splits.train, *splits.val) for path in case.images}
    if pool and training:
        record_images(outputs, pool, sorted(training))


def recorded_images(outputs: Path) -> tuple[Hashes, Hashes]:
    """Hashes of pool and training images as :func:`record_images` wrote them; empty where it did not."""
    path = outputs / IMAGES
    if not path.is_file():
        return {}, {}
    try:
        facts = read_typed(path, dict[str, dict[str, str]], "remove it")
        return facts["pool"], facts["training"]
    except (KeyError, FileError) as problem:
        raise StoreError(f"{path} is no list of image hashes ({problem}): remove it") from problem


def leak(pool: Hashes, training: Hashes) -> Finding | None:
    """The finding on images that are in both, or None."""
    known = {content: name for name, content in training.items()}
    both = [(name, known[content]) for name, content in pool.items() if content in known]
    if not both:
        return None
    return Finding(
        "training_leak",
        "error",
        f"{len(both)} of {len(pool)} images of the pool set are among the {len(training)} of training: {_listed(both)}",
        "pool set and training set were drawn from one list, or a file was copied under another name",
        "leave these cases out of the store: networks are surer of what they were trained on, and calibrators fitted "
        "there do not hold elsewhere",
    )


def _listed(pairs: list[tuple[str, str]]) -> str:
    return "; ".join(f"{one} is {other}" for one, other in pairs[:5]) + ("; ..." if len(pairs) > 5 else "")


def duplicates(store: OutputStore) -> Finding | None:
    """The finding on cases with exactly the same content, or None."""
    first: dict[str, str] = {}
    twice = [
        (case.case_id, first[case.sha256])
        for case in store.manifest.cases
        if first.setdefault(case.sha256, case.case_id) != case.case_id
    ]
    if not twice:
        return None
    return Finding(
        "duplicate_cases",
        "warning",
        f"{len(twice)} of {len(store)} cases have exactly the scores and labels of another: {_listed(twice)}",
        "an image is in the pool set under two names",
        "keep one of each: otherwise the same image can be in cal and in test",
        tuple(one for one, _ in twice),
    )
