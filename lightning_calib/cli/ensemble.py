"""Training of ensemble members as jobs of an executor."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import lightning_calib
from lightning_calib.executors.base import Executor
from lightning_calib.kit.child import run_child
from lightning_calib.kit.files import FileError
from lightning_calib.kit.progress import spoken
from lightning_calib.kit.typed import read_typed

_POLL_SECONDS = 0.2
_TAIL_LINES = 15
_SOURCE = Path(lightning_calib.__file__).parents[1]  # also where the package is not installed


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Epoch:
    """What a member says after each epoch."""

    epoch: int
    max_epochs: int
    scores: dict[str, float]


def train_member(job: Job) -> None:
    """Train a member as a process of its own, with the GPU or the threads of the place where this runs."""
    environment: dict[str, str | None] = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_SOURCE), os.environ.get("PYTHONPATH")]))
    }
    if named := os.environ.get("WANDB_RUN_ID"):  # of the ensemble; members that shared it would overwrite each other
        environment |= {"WANDB_RUN_ID": f"{named}-{job.name}", "WANDB_RUN_GROUP": named, "WANDB_SWEEP_ID": None}
    run_child(job.command, job.log, environment)


def train_members(jobs: Sequence[Job], executor: Executor) -> dict[str, str]:
    """Train members and show their progress.

    A member that fails does not stop the others. If this process is interrupted, the members are too.

    Args:
        jobs: the members.
        executor: where they train.

    Returns:
        Why each failed member failed, by its name: exit code and the end of its log.
    """
    failures: dict[str, str] = {}
    with _display(jobs, executor.slots) as display, executor:
        for outcome in executor.run(jobs, train_member):
            job, reason = outcome.job, (outcome.error or "").partition("\n")[0].removeprefix("ChildProcessError: ")
            display.update()
            display.say(f"member {job.name}: failed, {reason}" if reason else f"member {job.name}: finished")
            if reason:
                failures[job.name] = f"{reason}; the end of {job.log}:\n{_tail(job)}"
    return failures


def _tail(job: Job) -> str:
    text = job.log.read_text(encoding="utf-8", errors="replace") if job.log.is_file() else ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-_TAIL_LINES:])


class _Display:
    """Bars in a terminal; plain lines, one an epoch, elsewhere; both with the time left."""

    def __init__(self, progress: Progress, jobs: Sequence[Job], parallel: int) -> None:
        self.progress, self.jobs, self.parallel, self.started = progress, jobs, parallel, time.time()
        self.bars: dict[str, TaskID] = {
            job.name: progress.add_task(f"member {job.name}", total=None, scores="") for job in jobs
        }
        self.training: set[str] = set()
        self.epochs: dict[str, int] = {}
        self.ticks: dict[str, list[float]] = {}  # when each epoch was seen to end
        self.lock = threading.Lock()

    def say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self) -> None:
        """Show what members have written since the last look."""
        with self.lock:
            for job in self.jobs:
                self._look(job)

    def _look(self, job: Job) -> None:
        if job.name not in self.training and job.log.is_file() and job.log.stat().st_mtime >= self.started - 1:
            self.training.add(job.name)
            self.say(f"member {job.name}: training, log in {job.log}")
        if job.name not in self.training or not job.progress.is_file():
            return
        try:
            facts = read_typed(job.progress, Epoch)
        except FileError:  # damaged: the next epoch writes it anew
            return
        epoch, total = facts.epoch, facts.max_epochs
        if self.epochs.get(job.name) == epoch:
            return
        self.epochs[job.name] = epoch
        self.ticks.setdefault(job.name, []).append(time.monotonic())
        scores = ", ".join(f"{name} {value:.4f}" for name, value in sorted(facts.scores.items()))
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
    """A display that looks at the members' files until the block ends."""
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} epochs"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[scores]}"),
    )
    ended = threading.Event()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        display = _Display(progress, jobs, parallel)

        def watch() -> None:
            while not ended.wait(_POLL_SECONDS):
                display.update()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield display
        finally:
            ended.set()
            watcher.join()
