"""Jobs spread over processes of this machine; a job that dies takes no other with it."""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from lightning_calib.executors.base import Executor, Job, Outcome, attempt, thread_variables
from lightning_calib.executors.logs import Teller, into_file, tail, with_log
from lightning_calib.kit.registry import import_modules, registering_modules

HERE = "this machine"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that jobs may use: those of ``CUDA_VISIBLE_DEVICES``, else all that there are.

    Example:
        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "2,5"})
        ['2', '5']
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    return (
        [str(i) for i in range(torch.cuda.device_count())]
        if named is None
        else [gpu for gpu in named.split(",") if gpu]
    )


def dealt(gpus: Sequence[str], slot: int, each: int) -> list[str]:
    """The GPUs of a worker, dealt out in turn.

    Example:
        >>> [dealt(["a", "b", "c", "d"], slot, each=2) for slot in range(3)]
        [['a', 'b'], ['c', 'd'], ['a', 'b']]
    """
    return [gpus[(slot * each + place) % len(gpus)] for place in range(min(each, len(gpus)))]


class LocalExecutor(Executor):
    """Worker processes on this machine.

    Every worker is a fresh process with ``threads`` threads, so that results do not depend on how many workers
    there are. A worker that is killed (out of memory, say) fails its own job and is replaced. Workers end when
    their parent does, in whatever way. What was registered here is registered in the workers, too. What jobs print
    and warn is told when they end, each message once. The visible GPUs are dealt out to the workers in turn.

    Args:
        slots: number of processes; 0 does everything in this one; None takes one a core.
        threads: threads that each job uses.
        start: called once in every process before its first job; importable by name.
        gpus: GPUs a job, where there are any.
    """

    def __init__(
        self,
        slots: int | None = None,
        threads: int = 1,
        start: Callable[[], None] | None = None,
        gpus: int = 1,
    ) -> None:
        slots = available_cores() if slots is None else slots
        if slots < 0 or threads < 1:
            raise ValueError(f"workers = {slots}, threads = {threads}; give at least 0 workers and 1 thread")
        self.slots, self.threads, self.start, self.gpus = slots, threads, start, gpus
        self._pool: list[_Worker] = []
        self._logs: tempfile.TemporaryDirectory[str] | None = None
        self._here: Any = None  # the job that this process does
        self._teller = Teller()

    def close(self) -> None:
        """End all processes, busy ones at once."""
        while self._pool:
            self._pool.pop().stop()
        if self._logs is not None:
            self._logs.cleanup()
            self._logs = None

    def doing(self) -> dict[str, list[str]]:
        """What the workers do now."""
        jobs = [worker.job for worker in self._pool] if self.slots else [self._here]
        return {HERE: [str(job) for job in jobs if job is not None]}

    def run(self, jobs: Sequence[Job], work: Callable[[Job], None]) -> Iterator[Outcome[Job]]:
        """Do all jobs, handed out in their order, and yield each outcome as it comes."""
        if self.slots == 0:
            yield from self._in_this_process(jobs, work)
            return
        while len(self._pool) < min(self.slots, len(jobs)):
            self._pool.append(self._worker(len(self._pool)))
        waiting = list(jobs)
        for worker in self._pool[: len(jobs)]:
            worker.give(waiting.pop(0), work)
        while busy := {worker.connection: worker for worker in self._pool if worker.job is not None}:
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]  # these are the connections that were handed in
                outcome = worker.take()
                if waiting:
                    worker.give(waiting.pop(0), work)
                self._teller.tell(outcome.log)
                yield outcome

    def _in_this_process(self, jobs: Sequence[Job], work: Callable[[Job], None]) -> Iterator[Outcome[Job]]:
        try:
            with torch_threads(self.threads):
                for self._here in jobs:
                    yield Outcome(self._here, attempt(work, self._here), HERE)
        finally:
            self._here = None

    def _worker(self, slot: int) -> "_Worker":
        if self._logs is None:
            self._logs = tempfile.TemporaryDirectory(prefix="lightning_calib-")
        gpus = visible_gpus(os.environ)
        own = {"CUDA_VISIBLE_DEVICES": ",".join(dealt(gpus, slot, self.gpus))} if gpus else {}
        return _Worker(Path(self._logs.name) / f"{slot}.log", self.threads, self.start, own)


class _Worker:
    """A process that does one job after the other, and writes what it has to say about each to a log."""

    def __init__(
        self, log: Path, threads: int, start: Callable[[], None] | None, environment: Mapping[str, str]
    ) -> None:
        self.log, self.threads, self.start = log, threads, start
        self.environment = {**thread_variables(threads), **environment}
        self.job: Any = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, self.log, self.threads, registering_modules(), self.start)
        self.process: SpawnProcess = context.Process(target=_serve, args=arguments)
        with _not_interrupted(), _environment(self.environment):
            self.process.start()
        theirs.close()

    def give(self, job: Job, work: Callable[[Job], None]) -> None:
        """Hand out a job."""
        self.job = job
        self.log.unlink(missing_ok=True)  # that of the job before
        self.connection.send((work, job))

    def take(self) -> Outcome[Any]:
        """Outcome of the job; a worker that died is replaced."""
        job, self.job = self.job, None
        try:
            return Outcome(job, self.connection.recv(), HERE, tail(self.log))
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            log = tail(self.log)
            self._start()
            reason = f"the worker process died with exit code {code}; -9 usually means out of memory"
            return Outcome(job, with_log(reason, log), HERE, log)

    def stop(self) -> None:
        """End the process: at once if it is busy."""
        if self.job is not None:
            self.process.terminate()
        self.connection.close()  # an idle worker reads the end of its pipe and leaves
        self.process.join()


def _serve(
    connection: Connection, log: Path, threads: int, modules: list[str], start: Callable[[], None] | None
) -> None:
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
        with into_file(log):
            error = broken or attempt(work, job)
        connection.send(error)


def _end_with_parent() -> None:
    """Leave when the parent is gone: a killed run must not go on in the background."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Let torch use so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
