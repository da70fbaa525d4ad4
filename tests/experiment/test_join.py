"""Several calls on one folder: each job is done once, and the results are those of one call."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_calib.executors.base import Outcome
from lightning_calib.executors.joined import JoinedExecutor
from lightning_calib.executors.local import LocalExecutor
from lightning_calib.experiment.calls import JOINED, joined
from lightning_calib.kit.files import FileError
from tests.experiment.joining import SETTINGS
from tests.experiment.settings import run_small, small_experiment
from tests.experiment.synthetic import write_outputs
from tests.experiment.test_run import assert_same_files

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return write_outputs(tmp_path_factory.mktemp("joined") / "outputs", cases=12).path


def start(outputs, folder, notes, calls):
    command = [sys.executable, "-m", "tests.experiment.joining", str(outputs), str(folder), str(notes), str(calls)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_two_calls_share_the_jobs_and_leave_the_bytes_of_one(outputs, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    calls = [start(outputs, tmp_path / "c", notes, 2) for _ in range(2)]
    errors = [call.communicate(timeout=300)[1] for call in calls]
    assert [call.returncode for call in calls] == [0, 0], errors
    first, second = (path.read_text().splitlines() for path in notes.iterdir())
    assert not set(first) & set(second)
    assert len({*first, *second}) == len(first) + len(second)
    run_small(outputs, tmp_path / "alone", **SETTINGS)
    assert_same_files(tmp_path / "c", tmp_path / "alone")
    assert not (tmp_path / "c" / JOINED).exists()


def test_other_settings_and_calls_alone_are_refused(outputs, tmp_path):
    with joined(tmp_path, small_experiment(outputs, tmp_path, **SETTINGS), list) as call:
        assert call.tracks
        with pytest.raises(FileError, match=r"other settings are at work in .* \(seed: 0 there, 3 here\)"):
            run_small(outputs, tmp_path, join=True, **SETTINGS, seed=3)
        with pytest.raises(FileError, match="in use by calls with --join"):
            run_small(outputs, tmp_path, **SETTINGS)
        with joined(tmp_path, small_experiment(outputs, tmp_path, **SETTINGS), pytest.fail) as second:
            assert not second.tracks


def refuse(folder: Path, job: int) -> None:
    """A job that fails, noting that it was tried."""
    with (folder / "tried.txt").open("a") as file:
        file.write(f"{job}\n")
    raise ValueError(f"{job} is refused")


def test_every_call_hears_of_a_failure_that_came_once(tmp_path):
    first, second = (JoinedExecutor(LocalExecutor(0), tmp_path / "jobs") for _ in range(2))
    outcomes = [list(each.run([1, 2], lambda job: refuse(tmp_path, job))) for each in (first, second)]
    assert [[outcome.error.partition("\n")[0] for outcome in found] for found in outcomes] == [
        ["ValueError: 1 is refused", "ValueError: 2 is refused"]
    ] * 2
    assert (tmp_path / "tried.txt").read_text().split() == ["1", "2"]
    assert isinstance(outcomes[0][0], Outcome)
