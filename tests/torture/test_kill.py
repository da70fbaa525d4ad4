"""Commands that are killed at a write, a rename or an fsync: the next call leaves the same bytes, and nothing else."""

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.torture.outcomes import ALL, called, contents, note
from tests.torture.test_damage import run_line

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="kills are made in forks")]

KILLED = 9
SAMPLED = 6  # points of each command in CI
IN_A_ROW = 100 if ALL else 10


class Countdown:
    """Ends this process at the n-th touch of the disk, as SIGKILL would: no handler runs, nothing is flushed."""

    def __init__(self, left):
        self.left, self.seen = left, 0

    def __call__(self, call):
        def counted(*args, **options):
            self.seen += 1
            if self.seen > self.left:
                os._exit(KILLED)
            return call(*args, **options)

        return counted

    def install(self):
        for name in ("replace", "fsync", "unlink", "mkdir"):
            setattr(os, name, self(getattr(os, name)))
        Path.write_text = self(Path.write_text)
        Path.write_bytes = self(Path.write_bytes)


def in_fork(line, left, report=None):
    """Exit code of a command in a fork that is killed after ``left`` touches of the disk."""
    child = os.fork()
    if child == 0:
        countdown = Countdown(left)
        countdown.install()
        code = called(line)[0]
        if report is not None:
            os.write(report, str(countdown.seen).encode())
        os._exit(99 if code is None else code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def touches(line):
    """How often a whole call touches the disk."""
    reading, writing = os.pipe()
    assert in_fork(line, 10**9, writing) == 0
    return int(os.read(reading, 20))


def lines(root):
    """Commands that write, with where; what they need is there."""
    deployed = ["--calibration", root / "calibration", "--pipeline", "ts(p)", "--destination", root / "again"]
    maps = ["--deployed", root / "deployed", "--outputs", root / "outputs", "--destination", root / "maps"]
    return {
        "run": (run_line(root), "calibration"),
        "deploy": (["deploy", *deployed], "again"),
        "apply": (["apply", *maps], "maps"),
    }


def fresh(tortured, place, command):
    """What a command begins with."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(tortured, place)
    if command == "run":
        shutil.rmtree(place / "calibration")
        shutil.rmtree(place / "outputs" / "cache")
    return lines(place)[command]


def left_in(folder):
    """Everything but times, and what a call says of itself: how many maps it has written now."""
    return contents(folder, ("timing.json", ".lock", "index.json"))


@pytest.mark.parametrize("command", ["run", "deploy", "apply"])
def test_the_next_call_goes_on_to_the_same_bytes(tortured, tmp_path, command):
    place = tmp_path / "run"
    line, where = fresh(tortured, place, command)
    points = touches(line)
    wanted, wrong = left_in(place / where), []
    chosen = range(points) if ALL else sorted(random.Random(command).sample(range(points), SAMPLED))
    for point in chosen:
        line, where = fresh(tortured, place, command)
        assert in_fork(line, point) == KILLED
        code, _, err = called(line)
        same = code == 0 and left_in(place / where) == wanted
        if note("kills", "survived" if same else "silent" if code == 0 else "traceback") != "survived":
            wrong.append(f"{command} at {point} of {points}: {code}, {err[-300:]}")
    assert not wrong, "\n".join(wrong)


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
    wanted = contents(tortured / "calibration", ("timing.json", ".lock", "settings.json", "checksums.json"))
    for number in range(IN_A_ROW):
        code = in_fork(line, 25 + 2 * number)
        assert code in (0, KILLED)
        note("kills", "survived")
        if code == 0:
            break
    assert called(line)[0] == 0
    assert contents(tmp_path / "run" / where, ("timing.json", ".lock", "settings.json", "checksums.json")) == wanted
