"""`calibrate.py` killed or interrupted at any touch of the disk: the next call leaves the same bytes, nothing else."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.torture.killing import INTERRUPTED, KILLED, in_fork, interrupt, told_in_fork, touches
from tests.torture.outcomes import ALL, called, contents, note
from tests.torture.test_damage import run_line

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="kills are made in forks")]

ROOT = Path(__file__).parents[2]
SAMPLED = {"study": 1}  # points of a command in CI; 5 of others
SLOW = {"study": 12}  # points in all
IN_A_ROW = 100 if ALL else 10
WRITE = ("run", "deploy", "apply", "import", "study")
TIMES = ("timing.json", ".lock", "settings.json", "checksums.json")


def lines(root):
    """Commands, with where each writes; what they need is there."""
    deployed = ["--calibration", root / "calibration", "--pipeline", "ts(p)", "--destination", root / "again"]
    maps = ["--deployed", root / "deployed", "--outputs", root / "outputs"]
    arrays = ["--scores", root / "scores", "--targets", root / "targets", "--representation", "logits"]
    study = ["--calibration", root / "calibration", "--report", "false"]
    return {
        "run": (run_line(root), "calibration"),
        "deploy": (["deploy", *deployed], "again"),
        "apply": (["apply", *maps, "--destination", root / "maps"], "maps"),
        "import": (["import", "folder", *arrays, "--class_names", "[a, b]", "--outputs", root / "store"], "store"),
        "study": (["study", "offsets", *study], "calibration/studies"),
        "monitor": (["monitor", *maps], "deployed"),
    }


def fresh(tortured, place, command):
    """What a command begins with."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(tortured, place)
    if command == "run":
        shutil.rmtree(place / "calibration")
        shutil.rmtree(place / "outputs" / "cache")
    if command == "import":
        draw = np.random.default_rng(0)
        for kind, array in (("scores", draw.normal(size=(2, 6, 7))), ("targets", draw.integers(2, size=(6, 7)))):
            (place / kind).mkdir()
            for case in range(3):
                np.save(place / kind / f"{case}.npy", array)
    return lines(place)[command]


def left_in(folder):
    """Everything but times, and what a call says of itself: how many maps it has written now."""
    return contents(folder, ("timing.json", ".lock", "index.json"))


def chosen_points(command, points):
    """Where to end a command: at all of its touches, or at some, spread over them."""
    name = command.split()[0]
    return sorted(random.Random(command).sample(range(points), SLOW.get(name, points) if ALL else SAMPLED.get(name, 5)))


@pytest.mark.parametrize("command", WRITE)
def test_the_next_call_goes_on_to_the_same_bytes(tortured, tmp_path, command):
    place = tmp_path / "run"
    line, where = fresh(tortured, place, command)
    points = touches(line)
    wanted, wrong = left_in(place / where), []
    for point in chosen_points(command, points):
        line, where = fresh(tortured, place, command)
        assert in_fork(line, point) == KILLED
        code, _, err = called(line)
        same = code == 0 and left_in(place / where) == wanted
        outcome = "survived" if same else "silent" if code == 0 else "traceback"
        if note("kills", outcome, f"{command} at {point}: {err}") != "survived":
            wrong.append(f"{command} at {point} of {points}: {code}, {err[-300:]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", WRITE)
def test_ctrl_c_is_one_line_and_the_next_call_goes_on(tortured, tmp_path, command):
    place = tmp_path / "run"
    line, where = fresh(tortured, place, command)
    points = touches(line)
    wanted, wrong = left_in(place / where), []
    for point in chosen_points(f"{command} again", points):
        line, where = fresh(tortured, place, command)
        code, _, told = told_in_fork(line, point, interrupt)
        last = (told.strip().splitlines() or [""])[-1]
        stopped = code == INTERRUPTED and last.startswith("interrupted; run the same") and "Traceback" not in told
        code_after, _, err = called(line)
        same = code_after == 0 and left_in(place / where) == wanted
        if note("interrupts", "clear" if stopped and same else "traceback", f"{command} at {point}") != "clear":
            wrong.append(f"{command} at {point} of {points}: {code}, {told[-300:]}; then {code_after}, {err[-300:]}")
    assert not wrong, "\n".join(wrong)


def test_ctrl_c_ends_a_run_with_workers_in_one_line(tortured, tmp_path):
    """As a terminal sends it: to all processes at once."""
    place = tmp_path / "run"
    line, where = fresh(tortured, place, "run")
    line = [*line, "--workers", 2, "--repeats", 8]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "calibrate.py"), *map(str, line)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run in the background
    )
    while process.poll() is None and not list((place / where).rglob("fit.json")):
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    told = process.communicate()[1]
    assert process.returncode in (0, INTERRUPTED), told  # 0: it was quicker
    assert "Traceback" not in told
    if process.returncode:
        assert told.strip().splitlines()[-1].startswith("interrupted; run the same line again")
    assert called([*line, "--workers", 0])[0] == 0
    note("interrupts", "clear")


def test_monitor_writes_nothing(tortured, tmp_path):
    line, _ = fresh(tortured, tmp_path / "run", "monitor")
    before = contents(tmp_path / "run")
    assert in_fork(line) == 0
    assert contents(tmp_path / "run") == before


def test_a_deployment_works_while_it_is_replaced(tortured, tmp_path):
    """Killed before the swap, a second `deploy` leaves the first one as it was."""
    place = tmp_path / "run"
    shutil.copytree(tortured, place)
    line = ["deploy", "--calibration", place / "calibration", "--pipeline", "identity(p)"]
    before, points = contents(place / "deployed"), touches([*line, "--destination", tmp_path / "other"])
    for point in (points // 4, points // 2):
        assert in_fork(line, point) == KILLED
        now = contents(place / "deployed")
        assert {name: now.get(name) for name in before} == before
        maps = ["--outputs", place / "outputs", "--destination", tmp_path / f"maps-{point}"]
        assert called(["apply", "--deployed", place / "deployed", *maps])[0] == 0
        note("kills", "survived")


def test_kills_in_a_row_make_progress(tortured, tmp_path):
    """Each call gets a little further than the one before, however often it is killed."""
    line, where = fresh(tortured, tmp_path / "run", "run")
    wanted = contents(tortured / "calibration", TIMES)
    for number in range(IN_A_ROW):
        code = in_fork(line, 25 + 2 * number)
        assert code in (0, KILLED)
        note("kills", "survived")
        if code == 0:
            break
    assert called(line)[0] == 0
    assert contents(tmp_path / "run" / where, TIMES) == wanted
