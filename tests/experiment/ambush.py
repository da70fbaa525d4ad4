"""Experiments on Ray whose nodes or driver are lost at moments that do not depend on the clock.

    python -m tests.experiment.ambush ADDRESS OUTPUTS FOLDER MARKS

runs an experiment that loses the node of the first job of each kind, in the middle of it, and leaves a mark for each.

    python -m tests.experiment.ambush ADDRESS OUTPUTS FOLDER

runs one whose driver is killed when the first job of each kind has been done, and then to its end; prints how many
kills struck.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from lightning_calib.executors.ray import RayExecutor
from lightning_calib.kit.noise import quiet
from tests.experiment.killing import is_write
from tests.experiment.settings import run_small

KINDS = ("PoolJob", "TrialJob", "FitJob", "ShardJob", "EvaluationJob")  # the moments of a run, in order
SETTINGS = {"pipelines": ["identity(z)", "ms(z)", "lts_ti(z)", "ts(p)"], "repeats": 1, "trials": 1, "lts_trials": 2}
FATAL_WRITE = 2  # the first one opens a file, the second writes another or gives it its name


class LosesNodes(RayExecutor):
    """Loses the node of the first job of each kind in the middle of it."""

    def __init__(self, marks: Path, address: str) -> None:
        super().__init__(address, start=quiet)
        self.marks = marks

    def run(self, jobs: Sequence[Any], work: Callable[[Any], None]) -> Iterator[Any]:
        return super().run(jobs, partial(lose_node, self.marks, work))


def lose_node(marks: Path, work: Callable[[Any], None], job: Any) -> None:
    """Do a job; the first of its kind does not survive its second write."""
    try:
        (marks / type(job).__name__).mkdir()
    except FileExistsError:
        return work(job)
    done = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if not is_write(event, arguments):
            return
        done += 1
        if done == FATAL_WRITE:
            raylet = psutil.Process(os.getppid())
            assert raylet.name() == "raylet"
            raylet.kill()
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    return work(job)


class LosesDriver(RayExecutor):
    """Kills this process when a job of one kind has been done."""

    def __init__(self, address: str, kind: str | None) -> None:
        super().__init__(address, start=quiet)
        self.kind = kind

    def run(self, jobs: Sequence[Any], work: Callable[[Any], None]) -> Iterator[Any]:
        for outcome in super().run(jobs, work):
            if type(outcome.job).__name__ == self.kind:
                os.kill(os.getpid(), signal.SIGKILL)
            yield outcome


def killed(address: str, outputs: str, folder: str, kind: str | None) -> bool:
    """Whether a run was killed; it is forked, so that only the first process pays for its imports."""
    pid = os.fork()
    if pid == 0:
        run_small(outputs, folder, executor=LosesDriver(address, kind), **SETTINGS)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def main(address: str, outputs: str, folder: str, marks: str | None = None) -> None:
    if marks is not None:
        results = run_small(outputs, folder, executor=LosesNodes(Path(marks), address), **SETTINGS)
        assert results.failures == []
        return
    struck = sum(killed(address, outputs, folder, kind) for kind in KINDS)
    assert not killed(address, outputs, folder, None)
    print(struck)


if __name__ == "__main__":
    main(*sys.argv[1:])
