"""`train.py` killed, interrupted, on damaged files, on full and read-only disks, and twice at once."""

import json
import os
import random
import shutil
import zipfile

import pytest
import torch
import yaml

from tests.torture.disks import MOUNTS, can_mount, read_only, resized, small_disk
from tests.torture.killing import FAILED, INTERRUPTED, KILLED, in_fork, interrupt, told_in_fork, touches
from tests.torture.outcomes import ALL, DAMAGES, LINES, called, contents, damaged, note

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="kills are made in forks")]

SAMPLED = 4  # points of each command in CI
DAMAGED = 24  # pairs of damage and command in CI
HERE = "tests.torture.killing.Here"


def line_of(root, command):
    """A command of a run whose config is in the folder above it."""
    config = ["--config", root.parent / "tiny.yaml", "--runs_dir", root.parent, "--name", root.name]
    more = {"ensemble": ["--members", 2, "--executor", HERE]}.get(command, [])
    return ["train", command, *config, *more]


def weights(root, members=("0",)):
    """What the members have learned, by the file and the name; None where one is not there."""
    paths = [root / "members" / name / "checkpoints" / "last.ckpt" for name in members]
    if not all((path.parents[1] / "finished.json").is_file() for path in paths):
        return None
    states = [torch.load(path, weights_only=True)["state_dict"] for path in paths]
    return [(key, value.tolist()) for state in states for key, value in state.items()]


def result(root, command):
    """What a command is there for."""
    if command == "predict":
        return contents(root / "outputs", (".lock",))
    return weights(root, ("0", "1") if command == "ensemble" else ("0",))


def leftovers(root):
    return [path for path in root.rglob("*.part") if path.is_file()]


def fresh(trained, place, command):
    """What a command begins with: nothing, or trained members."""
    shutil.rmtree(place, ignore_errors=True)
    if command == "predict":
        shutil.copytree(trained, place, ignore=shutil.ignore_patterns("outputs"))
    else:
        place.mkdir()
    return line_of(place, command)


@pytest.mark.parametrize("command", ["fit", "ensemble", "predict"])
def test_the_next_call_goes_on_to_the_same_result(trained, command):
    place = trained.parent / f"killed-{command}"
    line, wrong = fresh(trained, place, command), []
    points = touches(line)
    wanted = result(place, command)
    assert wanted
    chosen = range(points) if ALL else sorted(random.Random(command).sample(range(points), SAMPLED))
    for point in chosen:
        code = in_fork(fresh(trained, place, command), point)
        assert code in (KILLED, 1)  # 1: a member was killed, and its ensemble says so
        code, _, err = called(line)
        same = code == 0 and result(place, command) == wanted and not leftovers(place)
        outcome = "survived" if same else "silent" if code == 0 else "traceback"
        if note("kills", outcome, f"{command} at {point}: {err}") != "survived":
            wrong.append(f"{command} at {point} of {points}: {code}, {err[-300:]}, {leftovers(place)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_ctrl_c_is_one_line_and_the_next_call_goes_on(trained, command):
    place = trained.parent / f"interrupted-{command}"
    line, wrong = fresh(trained, place, command), []
    points = touches(line)
    wanted = result(place, command)
    chosen = range(points) if ALL else sorted(random.Random(f"{command} again").sample(range(points), SAMPLED))
    for point in chosen:
        code, _, told = told_in_fork(fresh(trained, place, command), point, interrupt)
        last = (told.strip().splitlines() or [""])[-1]
        stopped = code == INTERRUPTED and last.startswith("interrupted; run the same") and "Traceback" not in told
        code_after, _, err = called(line)
        same = code_after == 0 and result(place, command) == wanted
        if note("interrupts", "clear" if stopped and same else "traceback", f"{command} at {point}") != "clear":
            wrong.append(f"{command} at {point} of {points}: {code}, {told[-300:]}; then {code_after}, {err[-300:]}")
    assert not wrong, "\n".join(wrong)


def test_kills_in_a_row_make_progress(trained):
    place = trained.parent / "row"
    line = fresh(trained, place, "fit")
    points = touches(line)
    wanted = result(place, "fit")
    fresh(trained, place, "fit")
    for number in range(100 if ALL else 8):
        note("kills", "survived")
        if in_fork(line, points // 3 + 2 * number) == 0:
            break
    assert called(line)[0] == 0
    assert result(place, "fit") == wanted


def all_places(trained, half_trained):
    """Every file of a run, finished or half trained, with every damage and every command that reads it."""
    found = []
    for root, commands in ((trained, ("ensemble", "predict", "apply", "deploy")), (half_trained, ("fit",))):
        files = [name for name in contents(root, (".lock",)) if name.startswith(("members/", "split.json"))]
        files = [name for name in files if "/logs/" not in name and not name.endswith(".log")]
        found += [(root, name, damage, command) for name in files for damage in DAMAGES for command in commands]
    return found


def command_on(place, command):
    """A command on a run, with what it leaves."""
    if command == "deploy":
        line = ["deploy", "--calibration", place / "calibration", "--pipeline", "ts(p)", "--destination", place / "new"]
        return line, lambda: contents(place / "new", (".lock", "README.md"))
    if command == "apply":
        images = ["--images", place.parent / "pictures", "--destination", place / "maps"]
        return ["apply", "--deployed", place / "deployed", *images], lambda: contents(place / "maps", (".lock",))
    if command == "predict":
        shutil.rmtree(place / "outputs")
    return line_of(place, command), lambda: result(place, command)


def test_a_damaged_checkpoint_is_not_gone_on_from(half_trained, tmp_path):
    """One bit of the weights: torch would read them."""
    name = "members/0/checkpoints/last.ckpt"
    shutil.copy(half_trained.parent / "tiny.yaml", tmp_path)
    with damaged(half_trained, name, flip_weights, tmp_path) as place:
        code, _, err = called(line_of(place, "fit"))
        assert code == 2
        assert f"{place / name} is damaged" in err
        assert "remove it: the training then begins anew" in err
        note("damage", "clear")


def flip_weights(path):
    """Change one bit of the first tensor in a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        entry = next(entry for entry in archive.infolist() if "/data/" in entry.filename and entry.file_size)
        with archive.open(entry) as part:
            start = path.read_bytes().index(part.read())
    whole = bytearray(path.read_bytes())
    whole[start] ^= 1
    path.write_bytes(bytes(whole))


@pytest.mark.parametrize("command", ["ensemble", "predict"])
def test_a_changed_member_is_told(trained, tmp_path, command):
    shutil.copy(trained.parent / "tiny.yaml", tmp_path)
    for name in ("checkpoints/last.ckpt", "cases.json"):
        with damaged(trained, f"members/1/{name}", DAMAGES[3], tmp_path) as place:
            if command == "predict":
                shutil.rmtree(place / "outputs")
            code, _, err = called(line_of(place, command))
            assert code == 2
            assert f"changed or damaged since it was written: {place / 'members' / '1' / name}" in err
            note("damage", "clear")


def test_a_changed_division_is_told(trained, tmp_path):
    shutil.copy(trained.parent / "tiny.yaml", tmp_path)
    for damage in (DAMAGES[3], drop_a_case):
        with damaged(trained, "split.json", damage, tmp_path) as place:
            code, _, err = called(line_of(place, "predict"))
            assert code == 2
            assert f"{place / 'split.json'} has changed since it was written" in err
            note("damage", "clear")
            text = json.loads((place / "split.json").read_text())
            del text["digest"]
            (place / "split.json").write_text(json.dumps(text))
            assert called(line_of(place, "predict"))[0] == 0


def drop_a_case(path):
    """Edit the division by hand."""
    facts = json.loads(path.read_text())
    facts["pool"] = facts["pool"][1:]
    path.write_text(json.dumps(facts))


def test_damage_is_told_or_mended(trained, half_trained, tmp_path):
    places, expected, wrong = all_places(trained, half_trained), {}, []
    chosen = places if ALL else random.Random(1).sample(places, DAMAGED)
    shutil.copy(trained.parent / "tiny.yaml", tmp_path)
    shutil.copytree(trained.parent / "pictures", tmp_path / "pictures")
    for root, name, damage, command in chosen:
        if (root, command) not in expected:
            with damaged(root, name, lambda path: None, tmp_path) as place:
                line, left = command_on(place, command)
                assert called(line)[0] == 0
                expected[root, command] = left()
        with damaged(root, name, damage, tmp_path) as place:
            line, left = command_on(place, command)
            code, out, err = called(line)
            told = (err or out).strip().splitlines()
            if code is None or "Traceback (most recent" in out + err:
                found = "traceback"
            elif code:
                found = "clear" if told and len(told) <= LINES else "traceback"
            else:
                found = "survived" if left() == expected[root, command] else "silent"
        if note("damage", found, f"{command} on {name}, {damage.__name__}: {err}") in ("silent", "traceback"):
            wrong.append(f"{command} on {name}, {damage.__name__}: {found}: {err[:300]}")
    assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong])


@pytest.mark.skipif(not MOUNTS, reason="only root of Linux mounts a small disk")
@pytest.mark.parametrize("command", ["fit", "predict"])
def test_full_and_read_only_disks_are_told(trained, tmp_path, command):
    if not can_mount(tmp_path):
        pytest.skip("no mounts in this sandbox")
    shutil.copy(trained.parent / "tiny.yaml", tmp_path)
    expected = tmp_path / "expected"
    assert called(fresh(trained, expected, command))[0] == 0
    wanted = result(expected, command)
    needed = sum(path.stat().st_size for path in expected.rglob("*") if path.is_file()) // 1024
    for number, share in enumerate((0.15, 0.3, 0.45, 0.6, 0.75, 0.9) if ALL else (0.3, 0.7)):
        place = tmp_path / f"disk-{number}"
        with small_disk(place, max(40, int(share * needed))):
            try:
                line = fresh(trained, place / "run", command)
            except (OSError, shutil.Error):  # the members do not fit
                continue
            line[line.index("--config") + 1] = tmp_path / "tiny.yaml"
            code, _, told = called(line)
            assert code in (0, 1, 2), told
            assert "Traceback" not in told
            note("load", "clear" if code else "survived")
            resized(place, 100_000)
            assert called(line)[0] == 0  # goes on once there is room
            assert result(place / "run", command) == wanted
            shutil.rmtree(place / "run" / ("outputs" if command == "predict" else "members"))
            read_only(place)
            code, _, told = called(line)
            assert code in (1, 2), told
            assert "Traceback" not in told
            assert "Read-only file system" in told
            note("load", "clear")


def test_two_ensembles_at_once(trained, half_trained):
    """One waits for the other's member, or takes the next; both end with the same members."""
    place = trained.parent / "twice"
    line = fresh(trained, place, "ensemble")
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            code = called(line)[0]
            os._exit(FAILED if code is None else code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert set(codes) <= {0, 1, 2}
    for code in codes:
        note("load", "clear" if code else "survived")
    assert called(line)[0] == 0
    assert weights(place, ("0", "1")) == weights(trained, ("0", "1"))


def test_a_config_of_another_type_is_told(trained, tmp_path):
    for text in ("- 1\n- 2\n", "a: [", "\0", "x: " + "[" * 5000):
        path = tmp_path / "tiny.yaml"
        path.write_text(text)
        code, out, err = called(["train", "fit", "--config", path])
        assert code not in (0, None), (text[:20], out, err)
        assert "Traceback" not in out + err
        note("hostile", "clear")
    assert yaml.safe_load((trained.parent / "tiny.yaml").read_text())["name"] == "tiny"
