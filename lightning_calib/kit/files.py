"""Files that appear whole or not at all."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Hand out a hidden neighbour to write to; it takes the place of ``path`` once the block succeeds.

    The content reaches the disk before the name does, so that a crash or a lost power supply leaves either
    the old file or the new one. The neighbour carries the process id: ranks do not meet in it.

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
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step (see :func:`atomic_path`)."""
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8")


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
