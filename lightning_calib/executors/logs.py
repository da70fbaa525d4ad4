"""What jobs print and warn: kept in a file of the job, told once however many jobs say it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TAIL_LINES = 40


@contextmanager
def into_file(path: Path) -> Iterator[None]:
    """Send everything that this process and its children write to their terminal to a file instead.

    The descriptors themselves are turned over, so that native code is heard, too, and the file holds what was said
    up to the moment in which a process is killed.
    """
    _flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        _flush()
        for standard, before in zip((1, 2), kept, strict=True):
            os.dup2(before, standard)
            os.close(before)
        os.close(file)


def speak_plainly() -> None:
    """Let Python write to the descriptors themselves, line by line, whatever a library has put in between."""
    _flush()
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def tail(path: Path) -> str:
    """The end of a log; nothing where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def with_log(reason: str, log: str) -> str:
    """A reason with the end of a job's log."""
    return f"{reason}\n\nthe end of its log:\n{log}" if log else f"{reason}; it printed nothing"


class Teller:
    """Passes on what jobs printed: each message once."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def tell(self, log: str) -> None:
        """Print the messages of a log that nobody has said before."""
        for message in messages(log):
            if message not in self.told:
                self.told.add(message)
                print(message, file=sys.stderr)


def messages(log: str) -> list[str]:
    r"""The messages of a log: a line and the indented ones below it, such as the source of a warning.

    Example:
        >>> messages("a.py:3: UserWarning: careful\n  warn(text)\ndone\n")
        ['a.py:3: UserWarning: careful\n  warn(text)', 'done']
    """
    found: list[str] = []
    for line in log.splitlines():
        if found and line[:1].isspace():
            found[-1] += f"\n{line}"
        elif line:
            found.append(line)
    return found


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
