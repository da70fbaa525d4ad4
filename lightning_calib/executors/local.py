"""Jobs spread over processes of this machine; a job that dies takes no other with it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from lightning_calib.executors.base import Executor, Job, Outcome, attempt
from lightning_calib.kit.registry import import_modules, registering_modules

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SLOT = "LIGHTNING_CALIB_SLOT"  # environment variable of a worker: its number


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalExecutor(Executor):
    """Worker processes on this machine.

    Every worker is a fresh process with ``threads`` threads, so that results do not depend on how many workers
    there are. A worker that is killed (out of memory, say) fails its own job and is replaced. Workers end when
    their parent does, in whatever way. What was registered here is registered in the workers, too.

    Args:
        slots: number of processes; 0 does everything in this one; None takes one a core.
        threads: threads a job.
        start: called once in every process before its first job; importable by name.
    """

    def __init__(self, slots: int | None = None, threads: int = 1, start: Callable[[], None] | None = None) -> None:
        slots = available_cores() if slots is None else slots
        if slots < 0 or threads < 1:
            raise ValueError(f"workers = {slots}, threads = {threads}; give at least 0 workers and 1 thread")
        self.slots, self.threads, self.start = slots, threads, start
        self._pool: list[_Worker] = []

    def close(self) -> None:
        """End all processes, busy ones at once."""
        while self._pool:
            self._pool.pop().stop()

    def run(self, jobs: Sequence[Job], work: Callable[[Job], None]) -> Iterator[Outcome[Job]]:
        """Do all jobs, handed out in their order, and yield each outcome as it comes."""
        if self.slots == 0:
            yield from _here(jobs, work, self.threads)
            return
        while len(self._pool) < min(self.slots, len(jobs)):
            self._pool.append(_Worker(len(self._pool), self.threads, self.start))
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
            yield Outcome(job, attempt(work, job))
    finally:
        torch.set_num_threads(before)


class _Worker:
    """A process that does one job after the other."""

    def __init__(self, slot: int, threads: int, start: Callable[[], None] | None) -> None:
        self.slot, self.threads, self.start = slot, threads, start
        self.job: Any = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, self.threads, registering_modules(), self.start)
        self.process: SpawnProcess = context.Process(target=_serve, args=arguments)
        with (
            _not_interrupted(),
            _environment({**dict.fromkeys(_THREAD_VARIABLES, str(self.threads)), SLOT: str(self.slot)}),
        ):
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


def _serve(connection: Connection, threads: int, modules: list[str], start: Callable[[], None] | None) -> None:
    """Life of a worker."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    broken = attempt(import_modules, modules)
    if start is not None:
        start()
    while True:
        try:
            work, job = connection.recv()
        except EOFError:
            return
        connection.send(broken or attempt(work, job))


def _end_with_parent() -> None:
    """Leave when the parent is gone: a killed run must not go on in the background."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """Let processes that start inside the block leave Ctrl-C to their parent, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
