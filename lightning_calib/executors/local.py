"""Jobs spread over processes, each with the same number of threads; a job that dies takes no other with it."""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, Self, TypeVar

import torch

Job = TypeVar("Job")

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TRACEBACK_LINES = 30


@dataclass(frozen=True)
class Outcome(Generic[Job]):
    """What became of a job: its error is None where it went well."""

    job: Job
    error: str | None = None


class Workers:
    """Processes that do jobs, used as a context.

    Every worker is a fresh process with ``threads`` threads, so that results do not depend on how many workers
    there are. A worker that is killed (out of memory, say) fails its own job and is replaced. Workers end when
    their parent does, in whatever way.

    Args:
        count: number of processes; 0 does everything in this one.
        threads: threads a job.
        start: called once in every process before its first job; importable by name.
    """

    def __init__(self, count: int = 1, threads: int = 1, start: Callable[[], None] | None = None) -> None:
        if count < 0 or threads < 1:
            raise ValueError(f"workers = {count}, threads = {threads}; give at least 0 workers and 1 thread")
        self.count, self.threads, self.start = count, threads, start
        self._pool: list[_Worker] = []

    def __enter__(self) -> Self:
        """Processes are started when there are jobs for them."""
        return self

    def __exit__(self, *problem: object) -> None:
        """End all processes, busy ones at once."""
        for worker in self._pool:
            worker.stop()

    def run(self, jobs: Sequence[Job], work: Callable[[Job], None]) -> Iterator[Outcome[Job]]:
        """Do all jobs and yield each outcome as it comes.

        Args:
            jobs: what to do; handed out in this order.
            work: what to do with a job; importable by name, since it runs in other processes.
        """
        if self.count == 0:
            yield from _here(jobs, work, self.threads)
            return
        while len(self._pool) < min(self.count, len(jobs)):
            self._pool.append(_Worker(self.threads, self.start))
        waiting = list(jobs)
        for worker in self._pool[: len(jobs)]:
            worker.give(waiting.pop(0), work)
        while busy := {worker.connection: worker for worker in self._pool if worker.job is not None}:
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]  # these are the connections that were handed in
                outcome = worker.take()
                if waiting:
                    worker.give(waiting.pop(0), work)
                yield outcome


def _here(jobs: Sequence[Job], work: Callable[[Job], None], threads: int) -> Iterator[Outcome[Job]]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for job in jobs:
            yield Outcome(job, _attempt(work, job))
    finally:
        torch.set_num_threads(before)


class _Worker:
    """A process that does one job after the other."""

    def __init__(self, threads: int, start: Callable[[], None] | None) -> None:
        self.threads, self.start = threads, start
        self.job: Any = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, self.threads, self.start))
        with _environment(dict.fromkeys(_THREAD_VARIABLES, str(self.threads))):
            self.process.start()
        theirs.close()

    def give(self, job: Job, work: Callable[[Job], None]) -> None:
        """Hand out a job."""
        self.job = job
        self.connection.send((work, job))

    def take(self) -> Outcome[Any]:
        """Outcome of the job; a worker that died is replaced."""
        job, self.job = self.job, None
        try:
            return Outcome(job, self.connection.recv())
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            self._start()
            return Outcome(job, f"the worker process died with exit code {code}; -9 usually means out of memory")

    def stop(self) -> None:
        """End the process: at once if it is busy."""
        if self.job is not None:
            self.process.terminate()
        self.connection.close()  # an idle worker reads the end of its pipe and leaves
        self.process.join()


def _serve(connection: Connection, threads: int, start: Callable[[], None] | None) -> None:
    """Life of a worker."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if start is not None:
        start()
    while True:
        try:
            work, job = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(work, job))


def _end_with_parent() -> None:
    """Leave when the parent is gone: a killed run must not go on in the background."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _attempt(work: Callable[[Job], None], job: Job) -> str | None:
    """Do a job; its error as text, with the last lines of the traceback."""
    try:
        work(job)
    except Exception as problem:
        lines = traceback.format_exc().strip().splitlines()[-TRACEBACK_LINES:]
        return "\n".join([f"{type(problem).__name__}: {problem}", "", *lines])
    return None


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that start inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
