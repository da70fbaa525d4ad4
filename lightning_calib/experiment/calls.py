"""Who works on the folder of an experiment: one call alone, or several that have joined."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lightning_calib.executors.base import Executor
from lightning_calib.executors.joined import JoinedExecutor
from lightning_calib.experiment.plan import Experiment
from lightning_calib.kit.files import FileError, locked, plain, read_json, write_json

JOINED = ".joined"  # gone when the last call has left
_CALL, _SETTINGS, _PATIENCE = "call-", "settings.json", 60.0
_OF_THE_CALL = ("outputs",)  # the same store may be mounted elsewhere; its hash is compared


@dataclass(frozen=True)
class Call:
    """This call's part in the work.

    Attributes:
        kept: pipelines of earlier calls whose results stay.
        tracks: whether this call hands numbers to the tracker.
        folder: what calls that have joined share; None for a call that is alone.
    """

    kept: list[str]
    tracks: bool = True
    folder: Path | None = None

    def share(self, executor: Executor) -> Executor:
        """The executor, less the jobs that others do."""
        return executor if self.folder is None else JoinedExecutor(executor, self.folder / "jobs")

    def one_at_a_time(self) -> AbstractContextManager[object]:
        """For what all calls do once all jobs are done: write the same summary."""
        return nullcontext() if self.folder is None else FileLock(self.folder / "summary.lock")


@contextmanager
def alone(root: Path, prepare: Callable[[], list[str]]) -> Iterator[Call]:
    """Keep the folder for this call.

    Args:
        root: folder of the experiment.
        prepare: makes it ready; the pipelines that stay.
    """
    with locked(root, "the experiment in"):
        if _others(root):
            raise FileError(f"the experiment in {root} is in use by calls with --join; wait for them, or join them")
        shutil.rmtree(root / JOINED, ignore_errors=True)
        yield Call(prepare())


@contextmanager
def joined(root: Path, experiment: Experiment, prepare: Callable[[], list[str]]) -> Iterator[Call]:
    """Share the folder with other calls that want the same.

    Args:
        root: folder of the experiment.
        experiment: what this call wants; others must want the same.
        prepare: makes the folder ready; called where this call is the first.
    """
    folder = root / JOINED
    mine = FileLock(folder / f"{_CALL}{uuid.uuid4().hex}.lock")
    tracker = FileLock(folder / "tracker.lock")
    with locked(root, "the experiment in", _PATIENCE):
        first = not _others(root)
        if first:
            shutil.rmtree(folder, ignore_errors=True)
            kept = prepare()
            write_json(folder / _SETTINGS, experiment.describe())
        else:
            _refuse_others(folder / _SETTINGS, experiment)
            kept = []
        mine.acquire(timeout=0)
    try:
        yield Call(kept, _taken(tracker), folder)
    finally:
        with locked(root, "the experiment in", _PATIENCE):
            tracker.release()
            mine.release()
            if not _others(root):
                shutil.rmtree(folder, ignore_errors=True)


def _others(root: Path) -> list[Path]:
    """Locks of calls that are at work; the system has freed those of calls that were killed."""
    return [path for path in (root / JOINED).glob(f"{_CALL}*") if not _free(path)]


def _free(path: Path) -> bool:
    lock = FileLock(path)
    taken = _taken(lock)
    lock.release()
    return taken


def _taken(lock: FileLock) -> bool:
    """Take a lock, where it is free."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _refuse_others(path: Path, experiment: Experiment) -> None:
    theirs, ours = read_json(path), plain(experiment.describe())
    differing = [key for key in ours if key not in _OF_THE_CALL and ours[key] != theirs.get(key)]
    if differing:
        told = "; ".join(f"{key}: {theirs.get(key)!r} there, {ours[key]!r} here" for key in differing)
        raise FileError(
            f"calls with other settings are at work in {path.parents[1]} ({told}); give the same, or wait for them"
        )
