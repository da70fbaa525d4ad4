"""Files that appear whole or not at all; JSON and CSV whose equal values give equal bytes; locks."""

import csv
import hashlib
import io
import json
import math
import os
import re
import shutil
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}-"


_FORMULA = re.compile(r"'*[=+\-@\t]")  # how what spreadsheets compute begins, with what was put in front of it
FILE_NAMES = "no slashes, no leading dot, no line breaks, not empty"  # the rule of `names_file`


class FileError(ValueError):
    """A file does not hold what it is taken for, or is in use; the message names it and the remedy."""


def names_file(name: str) -> bool:
    """Whether a name can become part of a path without leading elsewhere, and be printed on a line.

    Example:
        >>> names_file("case 7"), names_file("../7"), names_file(".7"), names_file("7" + chr(10))
        (True, False, False, False)
    """
    return bool(name) and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")


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
        aside.unlink(missing_ok=True)
        aside.touch(exist_ok=False)  # never through a link
        rights = aside.stat().st_mode
        yield aside
        aside.chmod(rights)  # safetensors, for one, would leave it to its owner alone
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def remove_leftovers(*folders: Path) -> None:
    """Remove what processes of this machine that are gone have left half written in some folders."""
    for path in (path for folder in folders for path in folder.glob(f".*.{_HOST}*.part")):
        process = path.name.removesuffix(".part").rpartition("-")[2]
        if process.isdigit() and not _runs(int(process)):
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


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


def read_yaml(path: Path, remedy: str) -> dict[str, Any]:
    """Read the keys and values of a YAML file; a damaged one is refused by name."""
    import yaml  # of the configs; most commands read none

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as problem:
        raise FileError(f"{path} is not YAML ({' '.join(str(problem).split())}); {remedy}") from problem
    if not isinstance(found, dict):
        raise FileError(f"{path} does not hold keys and values; {remedy}")
    return found


def _no_number(text: str) -> Any:  # noqa: ANN401
    raise ValueError(f"it holds {text}")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table in one step; numbers in the shortest form that reads back to the same bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, csv_lines([columns, *rows]))


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Lines of a CSV file; texts that spreadsheets would take for formulas get an apostrophe in front.

    Example:
        >>> csv_lines([["case", "nll"], ["=cmd()", -0.5]]).splitlines()
        ['case,nll', "'=cmd(),-0.5"]
    """
    text = io.StringIO()
    cells = ([f"'{x}" if isinstance(x, str) and _FORMULA.match(x) else x for x in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue()


def csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file with the number of their last line, as they were before :func:`csv_lines`.

    Example:
        >>> list(csv_rows(csv_lines([["=a", "'=b", "-c", "'d"]]).splitlines()))
        [(1, ['=a', "'=b", '-c', "'d"])]
    """
    reader = csv.reader(lines)
    for row in reader:
        yield reader.line_num, [x[1:] if x.startswith("'") and _FORMULA.match(x) else x for x in row]


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
