"""What users read when something goes wrong: the message first, a few lines, no traceback."""

import io
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from lightning_calib.kit.mend import Mendable
from lightning_calib.kit.program import named

TRACEBACK = "LIGHTNING_CALIB_TRACEBACK"  # environment variable: 1 brings tracebacks back
LISTED = 10
INTERRUPTED = 130  # what shells say after Ctrl-C
_MENDABLE = (ValueError, OSError, ImportError, MemoryError)
_LIGHTNING = "MisconfigurationException"  # by its name: most commands do not import Lightning
_WRAPPED = "Does not validate against any of the Union subtypes"  # jsonargparse around what a class said


_PACKAGE = Path(__file__).resolve().parents[1]
_ASKED: ContextVar[tuple[str, ...]] = ContextVar("the command line", default=())


def guarded(work: Callable[[], int | None], line: Sequence[str] = ()) -> int:
    """Do what a command asks for.

    Args:
        work: the command.
        line: the program and its command line, so that messages can print it corrected.

    Returns:
        Its exit code, 2 where something that the user can mend stands in the way.
    """
    _ASKED.set(tuple(line))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without arrows must not end a finished run
    try:
        with plain_warnings():
            return work() or 0
    except Exception as problem:
        mendable = isinstance(problem, _MENDABLE) or type(problem).__name__ == _LIGHTNING
        if not mendable or os.environ.get(TRACEBACK):
            raise
        print(f"error: {told(problem)}", file=sys.stderr)
        if isinstance(problem, Mendable) and (better := corrected({}, problem.options)):
            print(f"try: {better}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # Lightning's Trainer has caught it
            return _interrupted()
        raise


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of this package like errors: the message alone, programs in the form of the call."""
    usual = warnings.formatwarning

    def plain(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        ours = issubclass(category, UserWarning) and _PACKAGE in Path(filename).resolve().parents
        return f"warning: {named(str(message))}\n" if ours else usual(message, category, filename, lineno, line)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = usual


def told(problem: BaseException) -> str:
    """The message of a problem: what our own code said, and at most ten items of a list."""
    while str(problem).startswith(_WRAPPED) and problem.__cause__ is not None:
        problem = problem.__cause__
    lines = (named(str(problem)) or type(problem).__name__).splitlines()
    items = [line for line in lines if line.startswith("- ")]
    if len(items) <= LISTED:
        return "\n".join(lines)
    last = lines.index(items[LISTED - 1])
    return "\n".join([*lines[: last + 1], f"... and {len(items) - LISTED} more"])


def corrected(words: Mapping[str, str], options: Mapping[str, str] | None = None) -> str:
    """The command line that was meant, to be copied; empty where nothing of the line would change.

    Args:
        words: what to put in place of words of the line, or of options' names, dashes included.
        options: values of options, by name without dashes; replaced where they are written, else added.
    """
    line: list[str] = []
    for word in _ASKED.get():
        name, equals, value = word.partition("=")
        line.append(words.get(word, words.get(name, name) + equals + value))
    for option, value in (options or {}).items():
        line = [*_without(line, f"--{option}"), f"--{option}", value]
    return named(shlex.join(line)) if tuple(line) != _ASKED.get() else ""


def _without(line: Sequence[str], option: str) -> list[str]:
    """A command line without an option and its value."""
    follows = [False, *(word == option for word in line[:-1])]
    return [
        word
        for word, value in zip(line, follows, strict=True)
        if not value and word != option and not word.startswith(f"{option}=")
    ]


def _interrupted() -> int:
    print("interrupted; run the same line again: what is finished stays, the rest goes on", file=sys.stderr)
    return INTERRUPTED
