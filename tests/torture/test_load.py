"""Calls that meet in one folder, and disks that are full."""

import multiprocessing
import shutil

import pytest

from tests.torture.disks import MOUNTS, can_mount, small_disk
from tests.torture.outcomes import ALL, called, contents, note
from tests.torture.test_damage import run_line

pytestmark = pytest.mark.slow


def call(line, codes):
    codes.put(called(line)[:3:2])


def test_calls_that_meet_say_so(tortured, tmp_path):
    """Two runs, and two that read, on one folder: one works, others say that they wait, or read what is whole."""
    place = tmp_path / "run"
    shutil.copytree(tortured, place)
    wanted = contents(place / "calibration", ("timing.json", ".lock", "settings.json", "checksums.json"))
    show = ["recommend", "--calibration", place / "calibration"]
    report = ["report", "--calibration", place / "calibration", "--destination", tmp_path / "page"]
    context = multiprocessing.get_context("fork")
    codes = context.Queue()
    for _ in range(3 if ALL else 1):
        calls = [
            context.Process(target=call, args=(line, codes))
            for line in (run_line(place), run_line(place), show, report)
        ]
        for each in calls:
            each.start()
        found = [codes.get(timeout=300) for _ in calls]
        for each in calls:
            each.join()
        for code, told in found:
            assert code in (0, 2), told
            note("load", "survived" if code == 0 else "clear")
    assert called(run_line(place))[0] == 0
    assert contents(place / "calibration", ("timing.json", ".lock", "settings.json", "checksums.json")) == wanted


@pytest.mark.skipif(not MOUNTS, reason="only root of Linux mounts a small disk")
def test_full_disks_are_told_or_done_without(tortured, tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("no mounts in this sandbox")
    sizes = [200, 260, 300, 330, 360, 380, 400, 420, 450, 500] if ALL else [330, 400]
    wanted = contents(tortured / "calibration", ("timing.json", ".lock", "settings.json", "checksums.json"))
    for number, kilobytes in enumerate(sizes):
        place = tmp_path / f"disk-{number}"
        with small_disk(place, kilobytes):
            try:
                shutil.copytree(tortured / "outputs", place / "outputs", ignore=shutil.ignore_patterns("cache"))
            except (OSError, shutil.Error):
                continue
            code, _, told = called(run_line(place))
            assert code in (0, 1, 2), told
            assert "Traceback" not in told
            left = contents(place / "calibration", ("timing.json", ".lock", "settings.json", "checksums.json"))
            if code == 0:
                assert left == wanted
            note("load", "survived" if code == 0 else "clear")
