"""The same image in training and in the pool set, by hash."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from lightning_calib.datasets.content import TRAINED_ON, Content, copies, hash_files, load_training
from lightning_calib.kit.files import FileError, write_text
from lightning_calib.kit.typed import read_typed
from lightning_calib.outputs.doctor.finding import Finding
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.store import OutputStore

IMAGES = "images.json"  # beside the manifest: hashes of the images behind a store, where they are known

Hashes = dict[str, str]  # name of an image -> hash of its content


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
    return {str(path): content for path, content in hash_files(files_below(folder)).items()}


def record_images(outputs: Path, pool: Mapping[str, Iterable[Path]], training: Iterable[Path]) -> None:
    """Write down the hashes of the images of a store and of those that its networks were trained on.

    Args:
        outputs: folder of the store.
        pool: image files by case id.
        training: image files of training and validation.
    """
    training = list(training)
    hashes = hash_files([*training, *(path for files in pool.values() for path in files)])
    pooled = {f"{case_id}: {path.name}": hashes[path] for case_id, files in pool.items() for path in files}
    _write(outputs, pooled, {str(path): hashes[path] for path in training})


def remember_images(outputs: Path, pool: Mapping[str, Content], training: Mapping[str, Content]) -> None:
    """Record the images of a store's cases and of its networks' training; generated cases have no files."""
    _write(outputs, _by_image(pool), _by_image(training))


def _write(outputs: Path, pool: Hashes, training: Hashes) -> None:
    if pool and training:
        facts = {"pool": pool, "training": training}
        write_text(outputs / IMAGES, json.dumps(facts, indent=1, sort_keys=True) + "\n")


def _by_image(cases: Mapping[str, Content]) -> Hashes:
    """Hash of each image, by its case's id and, where there are several, its number."""
    found: Hashes = {}
    for case_id, content in cases.items():
        images = content.get("images", [])
        found |= {case_id if len(images) == 1 else f"{case_id} ({n})": one for n, one in enumerate(images)}
    return found


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
    return _leak(both, len(pool), len(training)) if both else None


def trained_beside(store: OutputStore) -> Finding | None:
    """The finding on cases that members were trained on, by what the run folder around the store says, or None."""
    trained: dict[str, Content] = {}
    for member in store.manifest.members:
        trained |= load_training(store.root.resolve().parent / "members" / member.name / TRAINED_ON) or {}
    twins = copies({case.case_id: case.made_of for case in store.manifest.cases}, trained)
    return _leak(list(twins.items()), len(store), len(trained)) if twins else None


def _leak(both: list[tuple[str, str]], pool: int, training: int) -> Finding:
    return Finding(
        "training_leak",
        "error",
        f"{len(both)} of {pool} images of the pool set are among the {training} of training: {_listed(both)}",
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
