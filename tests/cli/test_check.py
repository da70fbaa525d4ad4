"""train.py check: what the data look like, before anything is trained."""

import re

import nibabel
import numpy as np
import pytest
import yaml
from PIL import Image

from lightning_calib.datasets.preprocessing import Loader
from lightning_calib.datasets.volume_folder import VolumeFolder
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
    assert "must have one size" not in told
    assert re.search(r"values of images: uint8 from \d+ to \d+ \(imagenet normalisation\)", told)
    masks = np.stack([np.asarray(Image.open(path)) for path in (tmp_path / "data" / "masks").iterdir()])
    shares = [f"{value} ({100 * (masks == value).mean():.2f} %)" for value in (0, 1, 2)]
    assert f"values of masks: {', '.join(shares)}\n" in told
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


def test_sizes_that_fit_in_no_batch_are_told(written, tmp_path, capsys):
    for part in ("images", "masks"):
        path = tmp_path / "data" / part / "p00_a.png"
        layouts.save_picture(path, np.asarray(Image.open(path))[:32])
    told = "ATTENTION: images of a batch must have one size; set crop_size, image_size or batch_size: 1"
    for options, expected in (([], True), (["--data.init_args.crop_size", "[32, 32]"], False)):
        train("check", written, "--sheet", "false", *options)
        assert (told in capsys.readouterr().out) is expected


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


def test_volumes_whose_masks_hold_other_values(tmp_path, capsys):
    """The hint of the refusal is an option that there is, and results hold the same values."""
    path, root = tiny_config(tmp_path), layouts.write_volume_folder(tmp_path / "data")
    for mask in (root / "masks").iterdir():
        layouts.save_nifti(
            mask.with_name(mask.name.replace(".nii", "_seg.nii")), 50 * np.asarray(nibabel.load(mask).dataobj)
        )
        mask.unlink()
    config = yaml.safe_load(path.read_text())
    options = {"root": str(root), "class_names": NAMES[:3], "mask_suffix": "_seg"}
    config["data"] = {"class_path": "VolumeFolder", "init_args": options}
    path.write_text(yaml.safe_dump(config))
    refused(
        capsys,
        r"1 problem in .*\n.*masks hold \[0, 50, 100\], classes are 0 to 2; set mask_values: \[0, 50, 100\]",
        "check",
        path,
    )
    train("check", path, "--data.init_args.mask_values", "[0, 50, 100]")
    assert re.search(r"values of masks: 0 \(.*%\), 50 \(.*%\), 100 \(", capsys.readouterr().out)
    data = VolumeFolder(**(options | {"mask_values": [0, 50, 100]}))
    assert data.preprocessing.mask_values == (0, 50, 100)
    file, target = data.volume_reader.load(data.splits.pool[0])
    assert sorted(np.unique(target)) == [0, 1, 2]
    assert np.corrcoef(file.array[0].ravel(), target.ravel())[0, 1] > 0.9
    assert Loader(data.preprocessing, data.volume_reader)(data.splits.pool[0].images).image.shape[0] == 1
    with pytest.raises(ValueError, match="one value for each of the 3 classes"):
        VolumeFolder(**(options | {"mask_values": [0, 50]}))
