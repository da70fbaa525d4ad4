"""What every executor does: run jobs somewhere, and say what became of each."""

import difflib
import inspect
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from lightning_calib.kit.registry import Registry

Job = TypeVar("Job")

TRACEBACK_LINES = 30


@dataclass(frozen=True)
class Outcome(Generic[Job]):
    """What became of a job.

    Attributes:
        job: the job.
        error: what went wrong, the reason first; None where it went well.
        node: the machine that it ran on, where the executor knows.
        log: the end of what the job printed and warned.
    """

    job: Job
    error: str | None = None
    node: str | None = None
    log: str = ""


class ExecutorError(ValueError):
    """Jobs cannot run where they were meant to; the message says why, and the remedy."""


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

    def check(self, folders: Sequence[Path]) -> None:  # noqa: B027  # one machine has nothing to check
        """Make sure that every machine sees these folders, before anything starts; they are made where missing.

        Raises:
            ExecutorError: naming the machine that does not.
        """

    def doing(self) -> dict[str, list[str]]:
        """What each machine does now: its jobs as text, by its name."""
        return {}

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
    "executor",
    "lightning_calib.executors",
    {
        "local": "lightning_calib.executors.local:LocalExecutor",
        "ray": "lightning_calib.executors.ray:RayExecutor",
    },
)


COMMON = ("slots", "threads", "start")  # what commands say about every executor, and users do not
Choice = str | Mapping[str, Any] | Executor


def register_executor(name: str, executor: type[Executor]) -> type[Executor]:
    """Make an executor known by name.

    Its constructor takes ``slots`` (None for as many as fit), ``threads`` and ``start``. Further arguments of it are
    options of the command line: ``--executor.<name>``.
    """
    return EXECUTORS.register(name, executor)


def make_executor(
    choice: Choice,
    slots: int | None = None,
    threads: int = 1,
    start: Callable[[], None] | None = None,
) -> Executor:
    """The executor that a user chose.

    Args:
        choice: its name; a mapping with its ``name`` and options, as a config file holds it; or an executor, which is
            taken as it is.
        slots: jobs at a time; None leaves it to the executor.
        threads: threads that each job uses.
        start: called once in every process before its first job; importable by name.

    Example:
        >>> make_executor("local", slots=2).slots
        2
        >>> make_executor({"name": "local", "adress": "auto"})
        Traceback (most recent call last):
        ...
        ValueError: the executor local has no option 'adress'; it takes gpus
    """
    if isinstance(choice, Executor):
        return choice
    named = {"name": choice} if isinstance(choice, str) else choice
    options = {key: value for key, value in named.items() if key != "name"}
    name = str(named.get("name", "local"))
    kind = EXECUTORS[name]
    own = checked_options(name, kind, options)
    return kind(slots=slots, threads=threads, start=start, **own)  # type: ignore[call-arg]


def checked_options(name: str, kind: type[Executor], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an executor by the types in its signature; a wrong one is refused with the nearest right one."""
    known = [option for option in inspect.signature(kind).parameters if option not in COMMON]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"the executor {name} has no option {option!r}; {guess}{takes}")
    if not options:
        return {}
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, skip=set(COMMON))
    try:
        parsed = parser.parse_object(dict(options)).as_dict()
    except ArgumentError as problem:
        raise ValueError(f"options of the executor {name}: {problem}") from problem
    return {option: parsed[option] for option in options}


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables that give libraries a number of threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def attempt(work: Callable[[Job], None], job: Job) -> str | None:
    """Do a job; its error as text, with the last lines of the traceback, or None."""
    try:
        work(job)
    except Exception as problem:
        lines = traceback.format_exc().strip().splitlines()[-TRACEBACK_LINES:]
        return "\n".join([f"{type(problem).__name__}: {problem}", "", *lines])
    return None
