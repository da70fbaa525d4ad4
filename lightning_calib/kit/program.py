"""How our programs are called: the form that a user used is the one that messages and reports name."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = re.compile(r"(?<![\w/])(train|calibrate)\.py\b")


def named(text: str) -> str:
    """Text in which our programs are called as this one was: ``train.py fit`` or ``lightning-calib train fit``."""
    program = _installed()
    return text if program is None else _PROGRAM.sub(rf"{program} \1", text)


def command(words: Sequence[str]) -> str:
    """A line to copy into a shell: ``python calibrate.py ...``, or the installed program where that was called.

    Args:
        words: the program (``calibrate`` or ``train``), its command, options and values.

    Example:
        >>> command(["calibrate", "deploy", "--calibration", "my runs/calibration"]).split(" ", 1)[1][-42:]
        "deploy --calibration 'my runs/calibration'"
    """
    program, *rest = words
    started = Path(sys.argv[0]).name
    begin = f"python {program}.py" if started in ("train.py", "calibrate.py") else f"{_installed() or NAME} {program}"
    return f"{begin} {shlex.join(rest)}"


NAME = "lightning-calib"


def _installed() -> str | None:
    """The name of the installed program; None where something else was started."""
    started = Path(sys.argv[0])
    if started.parts[-2:] == ("lightning_calib", "__main__.py"):
        return "python -m lightning_calib"
    return NAME if started.stem == NAME else None
