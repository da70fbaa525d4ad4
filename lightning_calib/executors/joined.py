"""Jobs that several independent calls share by nothing but a folder: each is claimed by a lock and done once."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from lightning_calib.executors.base import Executor, Job, Outcome, attempt
from lightning_calib.kit.files import digest, write_json
from lightning_calib.kit.typed import read_typed

POLL_SECONDS = 0.5


class JoinedExecutor(Executor):
    """Another executor's jobs, less those that other calls do at the same time.

    All calls hand in the same jobs. One claims a job by a lock, which the system frees if its process dies, and
    leaves a note of what became of it; the others wait for the note. So every call sees every outcome.

    Args:
        executor: runs what this call claims.
        folder: locks and notes, common to all calls and emptied before the first.
    """

    def __init__(self, executor: Executor, folder: Path) -> None:
        self.executor, self.folder = executor, folder
        self.slots = executor.slots

    def run(self, jobs: Sequence[Job], work: Callable[[Job], None]) -> Iterator[Outcome[Job]]:
        """Do all jobs, here or elsewhere, and yield each outcome as it comes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = list(jobs)
        while waiting:
            elsewhere = []
            for outcome in self.executor.run(waiting, partial(_claim, self.folder, work)):
                note = _note(self.folder, outcome.job)
                if note.is_file():
                    yield replace(outcome, error=_error(note))
                elif outcome.error is not None:  # the process died: another call may have more luck
                    yield outcome
                else:
                    elsewhere.append(outcome.job)
            if len(elsewhere) == len(waiting):
                time.sleep(POLL_SECONDS)
            waiting = elsewhere

    def check(self, folders: Sequence[Path]) -> None:
        """Make sure that every machine of this call sees these folders."""
        self.executor.check(folders)

    def doing(self) -> dict[str, list[str]]:
        """What this call does now."""
        return self.executor.doing()

    def close(self) -> None:
        """End what this call runs."""
        self.executor.close()


def _error(note: Path) -> str | None:
    return read_typed(note, dict[str, str | None])["error"]


def _note(folder: Path, job: object) -> Path:
    return folder / f"{digest(repr(job))}.json"


def _claim(folder: Path, work: Callable[[Job], None], job: Job) -> None:
    """Do a job, unless another call does it or has done it."""
    note = _note(folder, job)
    try:
        with FileLock(note.with_suffix(".lock"), timeout=0):
            if not note.is_file():
                write_json(note, {"error": attempt(work, job)})
    except Timeout:
        return
