"""Files that appear whole or not at all; JSON and CSV whose equal values give equal bytes; locks."""

import csv
import hashlib
import io
import json
import math
import os
import shutil
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}-"


class FileError(ValueError):
    """A file does not hold what it is taken for, or is in use; the message names it and the remedy."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Hand out a hidden neighbour to write to; it takes the place of ``path`` once the block succeeds.

    The content reaches the disk before the name does, so that a crash or a lost power supply leaves either
    the old file or the new one. The neighbour carries the host and the process id: processes do not meet in it, also
    where machines share the folder. The file gets the rights that new files get here, whatever writes it.

    Args:
        path: the file to appear.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "a.txt"
        >>> with atomic_path(target) as aside:
        ...     _ = aside.write_text("whole")
        ...     target.exists()
        False
        >>> target.read_text()
        'whole'
    """
    aside = path.with_name(f".{path.name}.{_HOST}{os.getpid()}.part")
    try:
        aside.touch()
        rights = aside.stat().st_mode
        yield aside
        aside.chmod(rights)  # safetensors, for one, would leave it to its owner alone
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def replaced_files(folder: Path) -> Iterator[Path]:
    """Hand out a hidden folder to write to; once the block succeeds, what it holds moves into ``folder``.

    Until then what was there stays as it is, and works. Files of other names stay, too.

    Args:
        folder: where everything goes; it is locked meanwhile.
    """
    with locked(folder, "the folder"):
        for leftover in folder.glob(".*.part"):  # of processes that were killed
            shutil.rmtree(leftover, ignore_errors=True)
        aside = folder / f".{_HOST}{os.getpid()}.part"
        aside.mkdir()
        try:
            yield aside
            for path in sorted(aside.iterdir()):
                if path.is_dir():
                    shutil.rmtree(folder / path.name, ignore_errors=True)
                path.replace(folder / path.name)
            _sync(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step (see :func:`atomic_path`)."""
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8")


def plain(value: Any, digits: int | None = None) -> Any:  # noqa: ANN401
    """The value as JSON can hold it: NaN and infinities become null, tuples lists.

    Args:
        value: nested mappings, sequences and scalars.
        digits: significant digits to keep of floats; all by default.

    Example:
        >>> plain({"a": (1.23456, float("nan"))}, digits=3)
        {'a': [1.23, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, digits) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(value) if digits is None else float(f"{value:.{digits}g}")
    return str(value) if isinstance(value, Path) else value


def write_json(path: Path, value: Any, digits: int | None = None) -> None:  # noqa: ANN401
    """Write JSON in one step, keys in the given order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json_text(value, digits))


def json_text(value: Any, digits: int | None = None) -> str:  # noqa: ANN401
    """What :func:`write_json` writes."""
    return json.dumps(plain(value, digits), indent=1, allow_nan=False) + "\n"


def read_json(path: Path, remedy: str = "delete it and make it anew") -> Any:  # noqa: ANN401
    """Read JSON; a damaged file is refused by name, and so are NaN and infinities, which JSON does not know."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError as problem:
        raise FileError(f"{path} is missing") from problem
    except (ValueError, RecursionError, OSError) as problem:
        raise FileError(f"{path} is not JSON ({problem}); {remedy}") from problem


def _no_number(text: str) -> Any:  # noqa: ANN401
    raise ValueError(f"it holds {text}")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table in one step; numbers in the shortest form that reads back to the same bits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def digest(value: Any) -> str:  # noqa: ANN401
    """Short hash of what JSON can hold: the key of a cached result.

    Example:
        >>> digest({"a": 1, "b": [2]}) == digest({"b": (2,), "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]


@contextmanager
def locked(folder: Path, what: str, timeout: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder; the system frees it if this one dies.

    Args:
        folder: what to lock; it is made where it is missing.
        what: what the folder is, for the message.
        timeout: seconds to wait for another process.

    Raises:
        FileError: where another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise FileError(
            f"{what} {folder} is in use by another process; wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Ask the system to bring a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
