"""What every executor does: run jobs somewhere, and say what became of each."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from lightning_calib.kit.registry import Registry

Job = TypeVar("Job")

TRACEBACK_LINES = 30


@dataclass(frozen=True)
class Outcome(Generic[Job]):
    """What became of a job: its error is None where it went well."""

    job: Job
    error: str | None = None


class Executor(ABC):
    """Runs jobs; used as a context, which ends what still runs.

    Results of jobs travel through files that appear whole or not at all, so that a job may be run again, and the
    same bytes come out whatever the executor. Whatever a job needs (the work, the job, what ``start`` is) is
    importable by name where it runs.

    Attributes:
        slots: jobs that run at a time.
        start: called once in every process before its first job.
    """

    slots: int = 1
    start: Callable[[], None] | None = None

    @abstractmethod
    def run(self, jobs: Sequence[Job], work: Callable[[Job], None]) -> Iterator[Outcome[Job]]:
        """Do all jobs, handed out in their order, and yield each outcome as it comes."""

    def __enter__(self) -> Self:
        """Processes are started when there are jobs for them."""
        return self

    def __exit__(self, *problem: object) -> None:
        """End everything that still runs."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End everything that still runs."""


EXECUTORS: Registry[type[Executor]] = Registry(
    "executor", "lightning_calib.executors", {"local": "lightning_calib.executors.local:LocalExecutor"}
)


def register_executor(name: str, executor: type[Executor]) -> type[Executor]:
    """Make an executor known by name; its constructor takes ``slots``, ``threads`` and ``start``."""
    return EXECUTORS.register(name, executor)


def attempt(work: Callable[[Job], None], job: Job) -> str | None:
    """Do a job; its error as text, with the last lines of the traceback, or None."""
    try:
        work(job)
    except Exception as problem:
        lines = traceback.format_exc().strip().splitlines()[-TRACEBACK_LINES:]
        return "\n".join([f"{type(problem).__name__}: {problem}", "", *lines])
    return None
