"""A program as a child of this process, which it does not outlive."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PARENT = "LIGHTNING_CALIB_PARENT"  # environment variable: process id of the process that started this one

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


def run_child(command: Sequence[str], log: Path, environment: Mapping[str, str | None]) -> None:
    """Run a program to its end; it is ended where this process is asked to end.

    Args:
        command: program and arguments.
        log: file that gets what it prints, behind what is there.
        environment: variables besides those of this process; None takes one of these away.

    Raises:
        ChildProcessError: with the exit code or signal of a program that failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    given = {**os.environ, **environment, PARENT: str(os.getpid())}
    variables = {key: value for key, value in given.items() if value is not None}
    with log.open("ab") as file, _endable():
        child = subprocess.Popen(
            list(command), stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=variables
        )
        try:
            code = child.wait()
        finally:
            child.terminate()
            child.wait()
    if code:
        raise ChildProcessError(f"killed by signal {-code}" if code < 0 else f"exit code {code}")


def orphaned() -> bool:
    """Whether the process that started this one is gone."""
    parent = os.environ.get(PARENT)
    return bool(parent) and os.getppid() != int(str(parent))


def end_with_parent() -> None:
    """Have the system kill this process when the one that started it is gone; where it cannot, do nothing.

    Linux can. It must not wait for the next look at :func:`orphaned`: whoever does the work again, does it at once.
    """
    if not os.environ.get(PARENT) or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if orphaned():  # it went before we asked
        raise SystemExit("the process that started this one has ended")


@contextmanager
def _endable() -> Iterator[None]:
    """Let a polite request to end unwind the block, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
