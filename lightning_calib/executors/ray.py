"""Jobs as tasks of a Ray cluster; a node or a worker that dies takes no job with it."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from lightning_calib.executors.base import Executor, ExecutorError, Job, Outcome, thread_variables
from lightning_calib.executors.cluster import Needs, Node, connect, nodes_of, run_on
from lightning_calib.executors.logs import Teller, with_log
from lightning_calib.executors.node import PLACE, do_job, python_path, read_log, work_place
from lightning_calib.executors.storage import check_folders
from lightning_calib.kit.registry import registered_in_script, registering_modules

if TYPE_CHECKING:
    from ray import ObjectRef

_ANSWER_SECONDS = 60.0  # Python itself may start slowly from a shared file system
_LOG_SECONDS = 30.0


@dataclass
class _Task(Generic[Job]):
    """A job on its way."""

    number: int
    job: Job
    attempts: int = 0


class RayExecutor(Executor):
    """Tasks of a Ray cluster: one that runs already, or one that is started on this machine.

    Nodes see the folder of the run under the same path, and have the same versions of Python, Ray, torch and this
    package. A job whose worker is killed or whose node is lost is done again, elsewhere if need be. Jobs end when
    the process that asked for them does. Nothing is started or connected before the first job.

    Args:
        address: ``auto`` for the cluster that this machine belongs to, ``host:6379`` or ``ray://host:10001`` for
            another; None starts Ray on this machine.
        cpus: CPUs a job; by default one for each of its threads.
        gpus: GPUs a job; 0.25 lets four jobs share one.
        memory: memory a job needs, in GB: nodes take no more jobs than they have room for.
        retries: how often a job is done again whose worker or node died.
        slots: jobs at a time; None for what the cluster has room for.
        threads: threads that each job uses.
        start: called once in every process before its first job; importable by name.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus: float | None = None,
        gpus: float = 0.0,
        memory: float | None = None,
        retries: int = 3,
        slots: int | None = None,
        threads: int = 1,
        start: Callable[[], None] | None = None,
    ) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"workers = {slots}: Ray needs at least one; without workers, use the executor local")
        if retries < 0 or gpus < 0 or (cpus is not None and cpus <= 0) or (memory is not None and memory <= 0):
            raise ValueError(f"cpus = {cpus}, gpus = {gpus}, memory = {memory}, retries = {retries} make no sense")
        self.address, self.retries, self.limit = address, retries, slots
        self.threads, self.start = threads, start
        self.needs = Needs(float(threads) if cpus is None else cpus, gpus, memory)
        self._end: Callable[[], None] | None = None  # of the connection, once there is one
        self._run = uuid.uuid4().hex[:12]
        self._tasks: dict[ObjectRef[Any], _Task[Any]] = {}
        self._submitted = 0
        self._teller = Teller()

    @cached_property
    def slots(self) -> int:  # type: ignore[override]  # known when the cluster is
        """Jobs at a time; where the cluster decides, it is asked."""
        if self.limit is not None:
            return self.limit
        room = sum(self.needs.room(each) for each in self._nodes())
        if not room:
            raise ExecutorError(
                f"no node of the Ray cluster has {self.needs} for a job; ask for less, or give --workers to wait for "
                "nodes that come later"
            )
        return room

    def _nodes(self) -> list[Node]:
        self._connect()
        return nodes_of()

    def _connect(self) -> None:
        if self._end is None:
            self._end = connect(self.address, self.needs, self.limit, self._environment())

    def _environment(self) -> dict[str, str]:
        """Variables of the processes that do jobs."""
        own = {**thread_variables(self.threads), "PYTHONPATH": python_path(os.environ), PLACE: os.getcwd()}
        return own if self.needs.gpus else own | {"CUDA_VISIBLE_DEVICES": ""}

    def check(self, folders: Sequence[Path]) -> None:
        """Have each node read a token that is written here, and write one that is read here."""
        self._connect()
        fit = [each for each in nodes_of() if self.needs.room(each)]
        check_folders(folders, partial(run_on, fit, environment=self._environment(), seconds=_ANSWER_SECONDS))

    def doing(self) -> dict[str, list[str]]:
        """What each node does now."""
        names = {each.id: each.name for each in nodes_of()} if self._end else {}
        jobs = {task.number: str(task.job) for task in list(self._tasks.values())}
        found: dict[str, list[str]] = {}
        for number, place in sorted(work_place(self._run).items()) if names else ():
            if number in jobs and place in names:
                found.setdefault(names[place], []).append(jobs[number])
        return found

    def run(self, jobs: Sequence[Job], work: Callable[[Job], None]) -> Iterator[Outcome[Job]]:
        """Do all jobs, handed out in their order, and yield each outcome as it comes."""
        if not jobs:
            return
        self._connect()
        import ray

        most = self.limit or max(len(jobs), self.slots)  # more than there is room for waits in Ray's own queue
        waiting = [_Task(self._submitted + place, job) for place, job in enumerate(jobs)]
        self._submitted += len(jobs)
        submit = self._submitter(work)
        try:
            while waiting or self._tasks:
                while waiting and len(self._tasks) < most:
                    task = waiting.pop(0)
                    self._tasks[submit(task)] = task
                for done in ray.wait(list(self._tasks))[0]:
                    task = self._tasks.pop(done)
                    outcome = self._outcome(task, done)
                    if outcome is None:
                        waiting.insert(0, task)
                    else:
                        self._teller.tell(outcome.log)
                        yield outcome
        finally:
            self._cancel()

    def _submitter(self, work: Callable[[Job], None]) -> "Callable[[_Task[Job]], ObjectRef[Any]]":
        import ray

        if registered_in_script():
            raise ExecutorError(
                "this script registers something itself, and nodes of a cluster do not run it: put that into a module "
                "which they can import, and import it here"
            )
        remote: Any = ray.remote(do_job)
        remote = remote.options(
            max_retries=0,  # we count attempts: Ray would repeat without end what its memory monitor kills
            runtime_env={"env_vars": self._environment()},
            **self.needs.options(),
        )
        context = ray.put((work, self.threads, registering_modules(), self.start))

        def submit(task: _Task[Job]) -> "ObjectRef[Any]":
            task.attempts += 1
            reference: ObjectRef[Any] = remote.remote(context, task.job, self._run, task.number)
            return reference

        return submit

    def _outcome(self, task: _Task[Job], done: "ObjectRef[Any]") -> Outcome[Job] | None:
        """What became of a job; None where it is to be done again."""
        import ray

        names = {each.id: each.name for each in nodes_of()}
        try:
            error, log, place = ray.get(done)
        except ray.exceptions.RayTaskError as problem:  # it could not even begin: something is not importable there
            return Outcome(task.job, f"the job could not start: {problem.cause!r}\n\n{problem}")
        except ray.exceptions.RayError as problem:
            place = work_place(self._run, task.number).get(task.number, "")
            if task.attempts <= self.retries and not isinstance(problem, ray.exceptions.RuntimeEnvSetupError):
                where = names.get(place, "a node that is gone" if place else "before it began")
                told = f"its worker died ({where}), attempt {task.attempts} of {self.retries + 1}; it is done again"
                print(f"{task.job}: {told}", file=sys.stderr)
                return None
            log = self._log_of(task.number, place)
            reason = f"{type(problem).__name__} in each of {task.attempts} attempts: {_brief(problem)}"
            return Outcome(task.job, with_log(reason, log), names.get(place), log)
        return Outcome(task.job, error, names.get(place), log)

    def _log_of(self, number: int, place: str) -> str:
        """The end of what a job said whose worker died; nothing where its node is gone, too."""
        alive = [each for each in nodes_of() if each.id == place]
        found = run_on(alive, partial(read_log, self._run, number), self._environment(), _LOG_SECONDS)
        return next((answer.value or "" for answer in found), "")

    def _cancel(self) -> None:
        import ray

        while self._tasks and ray.is_initialized():
            ray.cancel(self._tasks.popitem()[0], force=True)
        self._tasks.clear()

    def close(self) -> None:
        """Cancel what still runs, and leave the cluster; one that was started here ends."""
        if self._end is not None:
            self._cancel()
            self._end()
            self._end = None
            self.__dict__.pop("slots", None)


def _brief(problem: Exception) -> str:
    """First line of what Ray says."""
    return str(problem).strip().partition("\n")[0]
