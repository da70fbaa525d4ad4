"""train.py check: what the data look like, before anything is trained."""

import re

import numpy as np
import pytest
import yaml
from PIL import Image

from tests import layouts
from tests.training import refused, tiny_config, train

NAMES = ["a", "b", "c", "never"]


@pytest.fixture
def written(tmp_path):
    """A folder of ten images, and the config of a run on it that no network is made for."""
    layouts.write_folder(tmp_path / "data", cases=10)
    path = tiny_config(tmp_path)
    config = yaml.safe_load(path.read_text())
    options = {"root": str(tmp_path / "data"), "class_names": NAMES, "group_regex": "^(?P<patient>p..)_"}
    config["data"] = {"class_path": "Folder", "init_args": options}
    path.write_text(yaml.safe_dump(config))
    return path


def test_check_says_what_the_data_look_like(written, tmp_path, capsys):
    pool = tmp_path / "pool.txt"
    pool.write_text("p03_a\np03_b\n")
    images = tmp_path / "data" / "images"
    copied = np.asarray(Image.open(images / "p00_a.png")).astype(int)
    layouts.save_picture(images / "p03_a.png", (copied * 0.9 + 9).clip(0, 255).astype(np.uint8))
    train("check", written, "--data.init_args.pool_list", str(pool))
    told = capsys.readouterr().out
    assert "sizes: 64x64 (10 cases)" in told
    assert re.search(r"values of images: uint8 from \d+ to \d+ \(imagenet normalisation\)", told)
    assert re.search(r"class a: in (\d) of \1 training, 2 of 2 validation, 2 of 2 pool cases", told)
    assert "class never: in 0 of 6 training" in told
    assert "ATTENTION: none in training and pool" in told
    assert "groups: patient (3 training, 1 validation, 1 pool)" in told
    assert re.search(r"ATTENTION: 1 near copies .*: p03_a looks like p00_a \((training|validation)\)", told)
    run = tmp_path / "runs" / "tiny"
    assert [path.name for path in run.iterdir()] == ["check.png"]
    sheet = np.asarray(Image.open(run / "check.png"))
    assert sheet.shape[2] == 3
    assert sheet.std() > 20


def test_problems_are_told_in_place_of_a_sheet(written, tmp_path, capsys):
    for path in (tmp_path / "data" / "masks").iterdir():
        layouts.save_picture(path, np.asarray(Image.open(path)) * 100)
    refused(capsys, r"1 problem in data .*\n- 10 cases .*masks hold \[0, 100, 200\]", "check", written)


def test_volumes_are_looked_at_too(tmp_path, capsys):
    path = tiny_config(tmp_path)
    config = yaml.safe_load(path.read_text())
    options = {"root": str(layouts.write_volume_folder(tmp_path / "data")), "class_names": NAMES[:3]}
    config["data"] = {"class_path": "VolumeFolder", "init_args": options}
    path.write_text(yaml.safe_dump(config))
    train("check", path, "--cases", "2")
    assert "none (2 cases looked at)" in capsys.readouterr().out
    assert (tmp_path / "runs" / "tiny" / "check.png").is_file()
