"""Jobs over processes: same threads, isolated failures, no orphans."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from lightning_calib.executors.local import LocalExecutor
from tests.experiment.jobs import note


def outcomes(folder, jobs, workers, threads=1):
    with LocalExecutor(workers, threads) as processes:
        return {outcome.job: outcome.error for outcome in processes.run(jobs, partial(note, folder))}


def test_failures_and_deaths_take_no_other_job_along(tmp_path):
    found = outcomes(tmp_path, [1, 3, 4, 5, 6], workers=2, threads=2)
    assert {job for job, error in found.items() if error is None} == {1, 5, 6}
    assert found[3].startswith("ValueError: three is refused")
    assert "Traceback" in found[3]
    assert "exit code -9" in found[4]
    notes = {path.stem: path.read_text().split() for path in tmp_path.glob("*.txt")}
    assert set(notes) == {"1", "5", "6"}
    assert all(text[1:] == ["2", "2"] for text in notes.values())
    assert not any(psutil.pid_exists(int(text[0])) for text in notes.values())


def test_no_workers_means_this_process(tmp_path):
    before = torch.get_num_threads()
    found = outcomes(tmp_path, [1, 3, 2], workers=0)
    assert list(found) == [1, 3, 2]
    assert found[3].startswith("ValueError")
    assert (tmp_path / "2.txt").read_text().split()[0] == str(os.getpid())
    assert torch.get_num_threads() == before


def test_an_interrupt_is_the_parents_business(tmp_path):
    """A terminal sends Ctrl-C to all processes; the parent decides, and ends the workers."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert outcomes(tmp_path, [7, 1], workers=1) == {7: None, 1: None}
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_to_do_starts_nothing(tmp_path):
    assert outcomes(tmp_path, [], workers=2) == {}


def test_impossible_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="workers = -1"):
        outcomes(tmp_path, [1], workers=-1)


def test_workers_end_with_their_parent(tmp_path):
    """The parent is killed outright; the worker must not go on."""
    code = (
        "from functools import partial; from pathlib import Path;"
        "from lightning_calib.executors.local import LocalExecutor; from tests.experiment.jobs import wait_for_end;"
        f"list(LocalExecutor(1).run([1], partial(wait_for_end, Path({str(tmp_path)!r}))))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        pid = wait_for(lambda: (tmp_path / "pid.txt").is_file() and (tmp_path / "pid.txt").read_text())
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not psutil.pid_exists(int(pid)))


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("waited in vain")
