"""What a command makes of something broken: told clearly, as if nothing were, silently wrong, or a traceback."""

import contextlib
import io
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from lightning_calib.cli.calibrate import main as calibrate
from lightning_calib.cli.train import main as train

Outcome = Literal["clear", "survived", "silent", "traceback"]

ALL = bool(os.environ.get("TORTURE_ALL"))  # make torture
LOG = os.environ.get("TORTURE_LOG")
TALLY: Counter[tuple[str, Outcome]] = Counter()
VOXELS: Counter[str] = Counter()

LINES = 12  # of a clear message
OTHER = ".other"  # where a link leads


def note(part: str, outcome: Outcome, told: str = "") -> Outcome:
    """Count an outcome for the table; what must not be is told at once where `TORTURE_LOG` names a file."""
    TALLY[part, outcome] += 1
    if LOG and outcome in ("silent", "traceback"):
        with open(LOG, "a") as file:
            file.write(f"{part}: {outcome}: {told}\n")
    return outcome


def called(line: Sequence[object]) -> tuple[int | None, str, str]:
    """Exit code, output and messages of ``calibrate.py``, or ``train.py`` where the line begins with ``train``.

    It runs in this process; the code is None, and the message is the error, where one escapes.
    """
    main, words = (train, line[1:]) if line[0] == "train" else (calibrate, line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
            err.write("" if end.code is None or isinstance(end.code, int) else end.code)
        except Exception as problem:
            return None, out.getvalue(), f"{type(problem).__name__}: {problem}"
    return code, out.getvalue(), err.getvalue()


def outcome_of(line: Sequence[object], result: Callable[[str], object], wanted: object) -> tuple[Outcome, str]:
    """What came of a command, and what it said.

    Args:
        line: the command.
        result: takes what came out, from what was printed and from the disk.
        wanted: what that is where nothing is broken.
    """
    code, out, err = called(line)
    if code is None or "Traceback (most recent" in out + err:
        return "traceback", err
    if code != 0:
        told = (err or out).strip().splitlines()
        return ("clear" if told and len(told) <= LINES else "traceback"), "\n".join(told[:LINES])
    return ("survived" if result(out) == wanted else "silent"), out[:300]


def contents(folder: Path, leaving: Sequence[str] = ("timing.json", ".lock", "checksums.json")) -> dict[str, bytes]:
    """All files of a folder but those that hold times."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in leaving)
    files = (path for path in files if not path.name.endswith(OTHER))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# What can happen to a file.
def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) * 2 // 3] ^= 1
    path.write_bytes(bytes(whole))


def wrong_type(path: Path) -> None:
    path.write_text("[1, 2]" if path.suffix == ".json" else "a,b\n1,2\n")


def not_a_number(path: Path) -> None:
    text = path.read_text(errors="replace") if path.suffix != ".safetensors" else ""
    path.write_text(text.replace("0.", "NaN", 1) if "0." in text else "NaN")


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 4)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def symlink(path: Path) -> None:
    other = path.with_name(f"{path.name}{OTHER}")
    other.write_text("{}")
    path.unlink()
    path.symlink_to(other)


DAMAGES = (gone, empty, half, flipped, wrong_type, not_a_number, nested, binary, folder, symlink)


@contextlib.contextmanager
def damaged(root: Path, name: str, damage: Callable[[Path], None], scratch: Path):
    """A copy of a run in which one file is damaged."""
    place = scratch / "run"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(root, place)
    damage(place / name)
    yield place
