"""Training of ensemble members as processes of their own."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import lightning_calib
from lightning_calib.callbacks.member import PARENT
from lightning_calib.kit.progress import spoken

_POLL_SECONDS = 0.2
_TAIL_LINES = 15
_SOURCE = Path(lightning_calib.__file__).parents[1]  # also where the package is not installed


@dataclass
class Job:
    """One member to train.

    Args:
        name: name of the member.
        command: what to run.
        log: file for what the process prints.
        progress: JSON file that the process renews after each epoch.
    """

    name: str
    command: Sequence[str]
    log: Path
    progress: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    slot: int = field(default=0, init=False)


def visible_gpus(environ: Mapping[str, str], count: int) -> list[str]:
    """Names of the GPUs that members may use: those of ``CUDA_VISIBLE_DEVICES``, else all ``count``.

    Example:
        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "2,5"}, count=2)
        ['2', '5']
        >>> visible_gpus({}, count=2)
        ['0', '1']
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    return [str(i) for i in range(count)] if named is None else [gpu for gpu in named.split(",") if gpu]


def child_environment(
    environ: Mapping[str, str], slot: int, parallel: int, gpus: Sequence[str], cores: int
) -> dict[str, str]:
    """Environment of a member's process: its own GPU, or its share of the cores.

    Args:
        environ: environment of the parent.
        slot: which of the ``parallel`` places the member takes.
        parallel: members that train at a time.
        gpus: names of the GPUs; empty for none.
        cores: cores of the machine.

    Example:
        >>> child_environment({}, slot=1, parallel=2, gpus=["2", "5"], cores=8)["CUDA_VISIBLE_DEVICES"]
        '5'
        >>> child_environment({}, slot=1, parallel=2, gpus=[], cores=8)["OMP_NUM_THREADS"]
        '4'
    """
    here = os.pathsep.join(filter(None, [str(_SOURCE), environ.get("PYTHONPATH")]))
    child = {**environ, PARENT: str(os.getpid()), "PYTHONPATH": here}
    if gpus:
        child["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    else:
        child.setdefault("OMP_NUM_THREADS", str(max(1, cores // parallel)))
    return child


def run_jobs(jobs: Sequence[Job], parallel: int, gpus: Sequence[str] = ()) -> dict[str, str]:
    """Run members, ``parallel`` at a time, and show their progress.

    A member that fails does not stop the others. If this process is interrupted, the members are too.

    Args:
        jobs: the members.
        parallel: members that train at a time.
        gpus: names of the GPUs; empty for none.

    Returns:
        Why each failed member failed, by its name: exit code and the end of its log.
    """
    waiting, running, failures = list(jobs), list[Job](), dict[str, str]()
    free = list(range(parallel))
    with _display(jobs, parallel) as display, _ended_with_us(running):
        while waiting or running:
            while waiting and free:
                job = waiting.pop(0)
                _start(job, free.pop(0), parallel, gpus)
                running.append(job)
                display.say(f"member {job.name}: training, log in {job.log}")
            time.sleep(_POLL_SECONDS)
            for job in list(running):
                display.update(job)
                if _has_ended(job):
                    running.remove(job)
                    free.append(job.slot)
                    failures |= _outcome(job, display)
    return failures


def _start(job: Job, slot: int, parallel: int, gpus: Sequence[str]) -> None:
    job.slot = slot
    job.log.parent.mkdir(parents=True, exist_ok=True)
    environment = child_environment(os.environ, slot, parallel, gpus, os.cpu_count() or 1)
    with job.log.open("ab") as log:
        job.process = subprocess.Popen(
            list(job.command), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        )


def _has_ended(job: Job) -> bool:
    assert job.process is not None
    return job.process.poll() is not None


def _outcome(job: Job, display: "_Display") -> dict[str, str]:
    assert job.process is not None
    code = job.process.returncode
    if code == 0:
        display.say(f"member {job.name}: finished")
        return {}
    reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    tail = "\n    ".join(job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])
    display.say(f"member {job.name}: failed, {reason}")
    return {job.name: f"{reason}; the end of {job.log}:\n    {tail}"}


@contextmanager
def _ended_with_us(running: list[Job]) -> Iterator[None]:
    try:
        yield
    finally:
        for job in running:
            assert job.process is not None
            job.process.terminate()
        for job in running:
            assert job.process is not None
            job.process.wait()


class _Display:
    """Bars in a terminal; plain lines, one an epoch, elsewhere; both with the time left."""

    def __init__(self, progress: Progress, jobs: Sequence[Job], parallel: int) -> None:
        self.progress, self.parallel = progress, parallel
        self.bars: dict[str, TaskID] = {job.name: progress.add_task(f"member {job.name}", total=None) for job in jobs}
        self.epochs: dict[str, int] = {}
        self.ticks: dict[str, list[float]] = {}  # when each epoch was seen to end

    def say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self, job: Job) -> None:
        try:
            facts = json.loads(job.progress.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        epoch, total = facts["epoch"], facts["max_epochs"]
        if self.epochs.get(job.name) == epoch:
            return
        self.epochs[job.name] = epoch
        self.ticks.setdefault(job.name, []).append(time.monotonic())
        scores = ", ".join(f"{name} {value:.4f}" for name, value in sorted(facts["scores"].items()))
        seconds = self.left(total)
        left = "time left not known yet" if isnan(seconds) else f"about {spoken(seconds)} left for all members"
        self.progress.update(self.bars[job.name], completed=epoch, total=total, scores=f"{scores}; {left}")
        if not self.progress.console.is_terminal:
            self.say(f"member {job.name}: epoch {epoch} of {total}, {scores}; {left}")

    def left(self, total: int) -> float:
        """Seconds until all members are trained, by what epochs took so far; NaN before the second one."""
        spans = [ticks[-1] - ticks[0] for ticks in self.ticks.values()]
        epochs = sum(len(ticks) - 1 for ticks in self.ticks.values())
        unfinished = [total - self.epochs.get(name, 0) for name in self.bars if self.epochs.get(name, 0) < total]
        if not epochs or not unfinished:
            return 0.0 if epochs else float("nan")
        places = min(self.parallel, len(unfinished))
        return max(sum(unfinished) / places, max(unfinished)) * sum(spans) / epochs


@contextmanager
def _display(jobs: Sequence[Job], parallel: int) -> Iterator[_Display]:
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} epochs"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[scores]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for_jobs = _Display(progress, jobs, parallel)
        for bar in for_jobs.bars.values():
            progress.update(bar, scores="")
        yield for_jobs
