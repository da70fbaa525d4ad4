"""Every file of a run, damaged in every way, under every command that reads it: told, or as if nothing had been."""

import random
import shutil
from functools import partial
from html import unescape

import pytest

from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import FileError
from tests.torture.outcomes import ALL, DAMAGES, called, contents, damaged, note, outcome_of

pytestmark = pytest.mark.slow

SAMPLED = 60  # of about 900 in CI
REPORTS = 60  # in all; each takes four seconds


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
        reports = [place for place in places if place[2] == "report"]
        others = [place for place in places if place[2] != "report"]
        return others + random.Random(0).sample(reports, REPORTS)
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


def flip_fit(tortured, scratch):
    """A copy of the run in which one bit of a fitted calibrator has changed."""
    name = "calibration/repeats/0/ts-p/calibrator.safetensors"
    return name, damaged(tortured, name, DAMAGES[3], scratch)


def test_a_report_names_a_changed_fit_and_goes_on(tortured, tmp_path):
    name, place = flip_fit(tortured, tmp_path)
    with place as root:
        code, _, err = called(["report", "--calibration", root / "calibration", "--destination", root / "new"])
        page = (root / "new" / "index.html").read_text()
        assert code == 0
        assert f"warning: ts(p), repeat 0: changed or damaged since it was written: {root / name}" in err
        assert "changed or damaged since it was written" in page
        results = Results(root / "calibration")
        with pytest.raises(FileError, match="changed or damaged"):
            results.calibrator(0, "ts(p)")
        assert len(results.table()) == 2


@pytest.mark.parametrize("command", ["deploy", "report", "study"])
def test_the_folder_of_a_run_stands_for_its_calibration(tortured, tmp_path, command):
    """What is written lies in it, not beside it."""
    with damaged(tortured, "outputs/manifest.json", lambda path: None, tmp_path) as root:
        shutil.rmtree(root / "deployed")
        before = sorted(root.parent.iterdir())
        options = {"deploy": ["--pipeline", "ts(p)"], "study": ["offsets", "--workers", 0]}.get(command, [])
        code, _, err = called([command, *options, "--calibration", root])
        assert code == 0, err
        assert sorted(root.parent.iterdir()) == before
        assert (root / "deployed" / "deployment.json" if command == "deploy" else root / "report").exists()


def test_a_report_stops_where_a_table_has_changed(tortured, tmp_path):
    with damaged(tortured, "calibration/cases.csv", DAMAGES[3], tmp_path) as root:
        code, _, err = called(["report", "--calibration", root / "calibration", "--destination", root / "new"])
        assert code == 2
        assert "cases.csv" in err
        assert not (root / "new").exists()


def test_a_changed_study_is_named_and_made_again(tortured, tmp_path):
    with damaged(tortured, "outputs/manifest.json", lambda path: None, tmp_path) as root:
        study = ["study", "bins", "--calibration", root / "calibration", "--report", "false", "--workers", 0]
        assert called(study)[::2] == (0, "")
        folder = root / "calibration" / "studies" / "bins"
        wanted = contents(folder)
        part = next(name for name in wanted if name.startswith("parts/"))
        names = [name for name in wanted if ALL or name in ("study.json", part)]
        for name in names:
            DAMAGES[3](folder / name)
            code, _, err = called(["report", "--calibration", root / "calibration", "--destination", root / "new"])
            assert code == 0, err
            page = unescape((root / "new" / "index.html").read_text())
            named = f"{folder / name}; `calibrate.py study bins` makes it anew" in page
            assert named == ("parts/" not in name)  # what a study only works with is not reported
            assert called(study)[0] == 0
            assert contents(folder) == wanted
            note("damage", "clear" if named else "survived")


def test_damage_is_told_or_mended(tortured, tmp_path):
    expected, wrong = {}, []
    for name, damage, command in chosen_places(tortured):
        if command not in expected:
            expected[command] = expected_of(command, tortured, tmp_path)
        with damaged(tortured, name, damage, tmp_path) as root:
            line, left = commands(root)[command]
            found, told = outcome_of(line, partial(result_of, command, left), expected[command])
        if note("damage", found, f"{command} on {name}, {damage.__name__}: {told}") in ("silent", "traceback"):
            wrong.append(f"{command} on {name}, {damage.__name__}: {found}: {told}")
    assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong])
