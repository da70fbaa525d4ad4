"""The hashes of a folder's files, noted beside them when a job is done: what was changed since is found."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning_calib.kit.files import FileError, json_text, read_json, sha256, write_json, write_text

CHECKSUMS = "checksums.json"


def note_checksums(folder: Path, names: Iterable[str]) -> None:
    """Note the hashes of some files of a folder; what is noted of others stays, files that are not there do not count.

    Args:
        folder: the folder.
        names: files in it.
    """
    _note(folder, {name: sha256(folder / name) for name in names if (folder / name).is_file()})


def write_done(folder: Path, marker: str, value: Any, names: Iterable[str], without: Iterable[str] = ()) -> None:  # noqa: ANN401
    """Write the file that says that a job is done, and the hashes of what it has left.

    The hashes come first, the marker's own among them: whoever is killed in between has not finished the job.

    Args:
        folder: folder of the job.
        marker: the JSON file.
        value: what it holds.
        names: the other files.
        without: files to be noted no more.
    """
    text = json_text(value)
    found = {name: sha256(folder / name) for name in names if (folder / name).is_file()}
    _note(folder, found | {marker: hashlib.sha256(text.encode()).hexdigest()}, without)
    write_text(folder / marker, text)


def _note(folder: Path, found: dict[str, str], without: Iterable[str] = ()) -> None:
    path, dropped = folder / CHECKSUMS, set(without)
    known = _read(path) if path.is_file() else {}
    write_json(path, {name: noted for name, noted in sorted((known | found).items()) if name not in dropped})


def changed_files(folder: Path) -> set[str]:
    """Files of a folder that are not what was noted of them: changed, damaged or gone; none where nothing was noted.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("1")
        >>> note_checksums(folder, ["a.txt"])
        >>> changed_files(folder)
        set()
        >>> _ = (folder / "a.txt").write_text("2")
        >>> changed_files(folder)
        {'a.txt'}
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return set()
    try:
        noted = _read(path)
    except FileError:
        return {CHECKSUMS}
    return {name for name, expected in noted.items() if not is_file_of(folder / name, expected)}


def refuse_changed(folder: Path, remedy: str) -> None:
    """Stop where files of a folder are not what was noted of them.

    Args:
        folder: the folder.
        remedy: what makes them anew.

    Raises:
        FileError: with their names.
    """
    if changed := sorted(changed_files(folder)):
        names = ", ".join(str(folder / name) for name in changed)
        raise FileError(f"changed or damaged since it was written: {names}; {remedy}")


def is_file_of(path: Path, expected: str) -> bool:
    """Whether there is a file with this hash; devices, which never end, are none."""
    try:
        return path.is_file() and sha256(path) == expected
    except OSError:  # gone, a folder, or not to be read
        return False


def _read(path: Path) -> dict[str, str]:
    noted = read_json(path)
    if not isinstance(noted, dict) or not all(isinstance(expected, str) for expected in noted.values()):
        raise FileError(f"{path} does not hold the hashes of files; delete it")
    return noted
