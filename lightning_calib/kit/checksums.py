"""The hashes of a folder's files, noted beside them when a job is done: what was changed since is found."""

from collections.abc import Iterable
from pathlib import Path

from lightning_calib.kit.files import FileError, read_json, sha256, write_json

CHECKSUMS = "checksums.json"


def note_checksums(folder: Path, names: Iterable[str], without: Iterable[str] = ()) -> None:
    """Note the hashes of some files of a folder; what is noted of others stays.

    Args:
        folder: the folder.
        names: files in it; those that are not there are passed over.
        without: files to be noted no more.
    """
    path = folder / CHECKSUMS
    known = _read(path) if path.is_file() else {}
    found = {name: sha256(folder / name) for name in names if (folder / name).is_file()}
    dropped = set(without)
    write_json(path, {name: known_hash for name, known_hash in sorted((known | found).items()) if name not in dropped})


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
    """Whether there is a file with this hash."""
    try:
        return sha256(path) == expected
    except OSError:  # gone, a folder, or not to be read
        return False


def _read(path: Path) -> dict[str, str]:
    noted = read_json(path)
    if not isinstance(noted, dict) or not all(isinstance(expected, str) for expected in noted.values()):
        raise FileError(f"{path} does not hold the hashes of files; delete it")
    return noted
