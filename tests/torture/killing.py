"""Commands in forks that end, or are interrupted, at the n-th touch of the disk."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from lightning_calib.executors.base import Outcome
from lightning_calib.executors.local import LocalExecutor
from tests.torture.outcomes import called

KILLED, FAILED, INTERRUPTED = 9, 99, 130
TOUCHES = ("replace", "fsync", "unlink", "mkdir")


def die() -> None:
    """As SIGKILL: no handler runs, nothing is flushed."""
    os._exit(KILLED)


def interrupt() -> None:
    """As Ctrl-C."""
    raise KeyboardInterrupt


class Countdown:
    """Ends this process, or the command in it, at the n-th touch of the disk."""

    def __init__(self, left: int, end: Callable[[], None] = die) -> None:
        self.left, self.end, self.seen = left, end, 0

    def __call__(self, call):
        def counted(*args, **options):
            self.seen += 1
            if self.seen == self.left + 1:
                self.end()
            return call(*args, **options)

        return counted

    def install(self) -> None:
        for name in TOUCHES:
            setattr(os, name, self(getattr(os, name)))
        Path.write_text = self(Path.write_text)
        Path.write_bytes = self(Path.write_bytes)


def in_fork(line: Sequence[object], left: int = 10**9, report: int | None = None, end: Callable[[], None] = die) -> int:
    """Exit code of a command in a fork that ends after ``left`` touches of the disk.

    Args:
        line: the command.
        left: touches that go well.
        report: where the fork writes how many there were and, behind a line, what the command said.
        end: what happens then.
    """
    child = os.fork()
    if child == 0:
        countdown = Countdown(left, end)
        countdown.install()
        code, _, err = called(line)
        if report is not None:
            os.write(report, f"{countdown.seen}\n{err[:2000]}".encode())
        os._exit(FAILED if code is None else code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def told_in_fork(line: Sequence[object], left: int = 10**9, end: Callable[[], None] = die) -> tuple[int, int, str]:
    """Exit code, touches of the disk and messages of a command in a fork that ends by itself."""
    reading, writing = os.pipe()
    try:
        code = in_fork(line, left, writing, end)
        os.close(writing)
        seen, _, err = os.read(reading, 4000).decode(errors="replace").partition("\n")
    finally:
        os.close(reading)
    return code, int(seen or 0), err


def touches(line: Sequence[object]) -> int:
    """How often a whole call touches the disk."""
    code, seen, err = told_in_fork(line)
    assert code == 0, err
    return seen


class Here(LocalExecutor):
    """Trains each member in a fork of this process, which a countdown of this process ends, too."""

    def __init__(self, slots: int | None = None, threads: int = 1, start: Callable[[], None] | None = None) -> None:
        super().__init__(0, threads, start)

    def run(self, jobs, work) -> Iterator[Outcome]:
        for job in jobs:
            _, _, module, program, *line = job.command  # python -m lightning_calib train fit ...
            assert (module, program) == ("lightning_calib", "train")
            job.log.parent.mkdir(parents=True, exist_ok=True)
            code = _forked(partial(called, ["train", *line]))
            yield Outcome(job, None if code == 0 else f"exit code {code}")


def _forked(call) -> int:
    child = os.fork()
    if child == 0:
        code = call()[0]
        os._exit(FAILED if code is None else code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
