"""Every file of a run, damaged in every way, under every command that reads it: told, or as if nothing had been."""

import random
from functools import partial

import pytest

from tests.torture.outcomes import ALL, DAMAGES, called, contents, damaged, note, outcome_of

pytestmark = pytest.mark.slow

SAMPLED = 60  # of about 900 in CI


def run_line(root):
    settings = ["--repeats", 1, "--trials", 1, "--cal", 2, "--val", 2, "--workers", 0, "--logger", "none"]
    return ["run", "--outputs", root / "outputs", "--pipelines", "identity(p),ts(p)", *settings, "--report", "false"]


def commands(root):
    """Commands by name, with what each leaves."""
    calibration, deployed, new = root / "calibration", root / "deployed", root / "new"
    return {
        "recommend": (["recommend", "--calibration", calibration], None),
        "compare": (["compare", "--calibration", calibration], None),
        "report": (["report", "--calibration", calibration, "--destination", new], new),
        "deploy": (["deploy", "--calibration", calibration, "--pipeline", "ts(p)", "--destination", new], new),
        "run": (run_line(root), calibration),
        "verify": (["verify", "--outputs", root / "outputs"], None),
        "apply": (["apply", "--deployed", deployed, "--outputs", root / "outputs", "--destination", new], new),
        "monitor": (["monitor", "--deployed", deployed, "--outputs", root / "outputs"], None),
    }


READ_BY = {
    "calibration": ("recommend", "compare", "deploy", "run", "report"),
    "outputs": ("verify", "apply", "run", "monitor"),
    "deployed": ("apply", "monitor"),
}
SLOW = ("report", "run", "deploy")  # seconds each: few of them in CI


def all_places(root):
    """Every file with every damage and every command."""
    files = [name for name in contents(root, leaving=("timing.json", ".lock"))]
    return [
        (name, damage, command)
        for name in files
        if name.partition("/")[0] in READ_BY
        for damage in DAMAGES
        for command in READ_BY[name.partition("/")[0]]
    ]


def chosen_places(root):
    places = all_places(root)
    if ALL:
        return places
    quick = [place for place in places if place[2] not in SLOW]
    slow = [place for place in places if place[2] in SLOW]
    draw = random.Random(0)
    return draw.sample(quick, SAMPLED) + draw.sample(slow, SAMPLED // 6)


def result_of(command, left, out):
    """What came out of a command, without what names its folder or the time."""
    printed = out if command in ("recommend", "compare", "verify") else ""
    if command == "verify":  # names the folder
        printed = printed.partition(": ")[2]
    if left is None or command == "report":  # its page holds random anchors of figures
        return printed, None
    leaving = ("timing.json", ".lock", "checksums.json", "settings.json", "index.json")
    return printed, contents(left, leaving) if left.exists() else None


def expected_of(command, tortured, scratch):
    """What comes out where nothing is damaged."""
    with damaged(tortured, "outputs/manifest.json", lambda path: None, scratch) as root:
        line, left = commands(root)[command]
        code, out, err = called(line)
        assert code == 0, err
        return result_of(command, left, out)


def test_damage_is_told_or_mended(tortured, tmp_path):
    expected, wrong = {}, []
    for name, damage, command in chosen_places(tortured):
        if command not in expected:
            expected[command] = expected_of(command, tortured, tmp_path)
        with damaged(tortured, name, damage, tmp_path) as root:
            line, left = commands(root)[command]
            found, told = outcome_of(line, partial(result_of, command, left), expected[command])
        if note("damage", found) in ("silent", "traceback"):
            wrong.append(f"{command} on {name}, {damage.__name__}: {found}: {told}")
    assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong])
