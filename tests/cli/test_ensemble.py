"""Members as processes: places, GPUs, failures; with small children that need no torch."""

import _thread
import json
import math
import os
import signal
import sys
import threading
import time
from itertools import pairwise

import pytest
from rich.progress import Progress

from lightning_calib.cli import ensemble
from lightning_calib.cli.ensemble import Job, train_members
from lightning_calib.executors.local import LocalExecutor
from lightning_calib.kit.child import PARENT

REPORT = """
import json, os, sys, time
started = time.time()
time.sleep(0.5)
names = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LIGHTNING_CALIB_PARENT"]
facts = {name: os.environ.get(name) for name in names} | {"parent": os.getppid()}
json.dump(facts | {"started": started, "ended": time.time()}, open(sys.argv[1], "w"))
"""


def jobs_of(folder, codes):
    return [
        Job(
            str(n),
            [sys.executable, "-c", code, str(folder / f"{n}.json")],
            folder / f"{n}.log",
            folder / f"{n}.progress",
        )
        for n, code in enumerate(codes)
    ]


def run_jobs(jobs, parallel, threads=1):
    return train_members(jobs, LocalExecutor(parallel, threads))


def reports(folder, count):
    return [json.loads((folder / f"{n}.json").read_text()) for n in range(count)]


def test_each_member_sees_one_gpu_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f,6")
    assert run_jobs(jobs_of(tmp_path, [REPORT] * 4), parallel=3) == {}
    found = reports(tmp_path, 4)
    assert [report["CUDA_VISIBLE_DEVICES"] for report in found[:3]] == ["3", "GPU-5f", "6"]
    assert found[3]["CUDA_VISIBLE_DEVICES"] in {"3", "GPU-5f", "6"}  # the place that was free first
    assert all(report[PARENT] == str(report["parent"]) for report in found)


def test_no_more_members_than_places_train_at_a_time(tmp_path):
    assert run_jobs(jobs_of(tmp_path, [REPORT] * 3), parallel=1, threads=2) == {}
    found = reports(tmp_path, 3)
    assert all(first["ended"] <= second["started"] for first, second in pairwise(found))
    assert found[0]["OMP_NUM_THREADS"] == "2"
    assert found[0]["CUDA_VISIBLE_DEVICES"] == os.environ.get("CUDA_VISIBLE_DEVICES")


def test_a_failure_is_told_and_the_others_finish(tmp_path, capsys):
    crash = "print('out of luck'); raise SystemExit(3)"
    killed = "import os; os.kill(os.getpid(), 9)"
    failures = run_jobs(jobs_of(tmp_path, [crash, REPORT, killed, REPORT]), parallel=2)
    assert set(failures) == {"0", "2"}
    assert "exit code 3" in failures["0"]
    assert "out of luck" in failures["0"]
    assert "killed by signal 9" in failures["2"]
    assert (tmp_path / "1.json").exists()
    assert (tmp_path / "3.json").exists()
    assert "member 1: finished" in capsys.readouterr().out


def test_progress_is_shown(tmp_path, capsys):
    code = """
import json, sys, time
for epoch in (1, 2):
    path = sys.argv[1].replace(".json", ".progress")
    json.dump({"epoch": epoch, "max_epochs": 2, "scores": {"val/dice": epoch / 4}}, open(path + "x", "w"))
    import os; os.replace(path + "x", path)
    time.sleep(1.5)
"""
    assert run_jobs(jobs_of(tmp_path, [code]), parallel=1) == {}
    shown = capsys.readouterr().out
    assert "member 0: epoch 1 of 2, val/dice 0.2500; time left not known yet" in shown
    assert "member 0: epoch 2 of 2, val/dice 0.5000; about 0 s left for all members" in shown


def test_time_left_counts_members_that_wait(tmp_path):
    display = ensemble._Display(Progress(disable=True), jobs_of(tmp_path, [""] * 3), parallel=2)
    assert math.isnan(display.left(total=5))
    display.epochs, display.ticks = {"0": 2, "1": 2}, {"0": [0.0, 10.0], "1": [0.0, 10.0]}
    assert display.left(total=5) == 10 * (3 + 3 + 5) / 2  # 10 s an epoch; two members at a time
    display.epochs = {"0": 5, "1": 5, "2": 1}
    assert display.left(total=5) == 40


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also where the tests were started in the background with that signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_members_too(tmp_path):
    code = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} '); time.sleep(60)"
    pid_file = tmp_path / "0.json"

    def interrupt_once_it_runs():
        while not pid_file.exists() or not pid_file.read_text().endswith(" "):
            time.sleep(0.02)
        _thread.interrupt_main()

    threading.Thread(target=interrupt_once_it_runs).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs_of(tmp_path, [code]), parallel=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
