"""Calibrated maps of new data: what is written, with which error, and what happens after an interruption."""

import json
import shutil
from dataclasses import replace

import nibabel
import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from lightning_calib.deployment import CalibratedEnsemble
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.sources import find_cases
from lightning_calib.outputs.store import OutputStore
from tests.deployment.runs import calibrate


@pytest.mark.parametrize(("precision", "error"), [("float32", 1e-7), ("16bit", 2**-12), ("8bit", 0.5 / 255)])
def test_a_store_keeps_to_the_stated_error(run, deployed, tmp_path, precision, error):
    where = ["--outputs", run / "outputs", "--destination", tmp_path, "--precision", precision]
    assert calibrate("apply", "--deployed", deployed, *where) == 0
    index = json.loads((tmp_path / "index.json").read_text())
    ensemble, store = CalibratedEnsemble.load(deployed, networks=False), OutputStore(run / "outputs")
    for case in store:
        assert index["cases"][case.case_id]["stated_error"] <= error
        maps = load_file(tmp_path / f"{case.case_id}.safetensors")
        scale = 255 if precision == "8bit" else 1
        expected = ensemble.calibrate(case.logits[None])
        assert (maps["probs"].double() / scale - expected.log_probs[0].exp()).abs().max() <= error + 1e-9
        assert (maps["confidence"].double() / scale - expected.confidence[0]).abs().max() <= error + 1e-9
        assert (maps["mask"] == case.pooled("p").argmax(0)).all()
        picture = np.asarray(Image.open(tmp_path / f"{case.case_id}_mask.png"))
        assert (picture == maps["mask"].numpy()).all()


def test_images_give_the_maps_of_their_stored_outputs(run, deployed, tmp_path):
    common = ["--deployed", deployed, "--precision", "float32"]
    assert calibrate("apply", *common, "--images", run / "pictures", "--destination", tmp_path / "a") == 0
    assert calibrate("apply", *common, "--outputs", run / "outputs", "--destination", tmp_path / "b") == 0
    files = sorted(path.name for path in (tmp_path / "a").glob("*.safetensors"))
    assert len(files) == 24
    for name in files:
        first, second = load_file(tmp_path / "a" / name), load_file(tmp_path / "b" / name)
        assert (first["probs"] - second["probs"]).abs().max() < 1e-5
        assert (first["mask"] == second["mask"]).all()


def test_masks_hold_the_values_of_the_trainings_masks(run, deployed, tmp_path):
    copy, values = run / "deployed-values", np.array([0, 85, 170, 255])
    shutil.copytree(deployed, copy)
    known = Deployment.load(copy)
    reader = {"name": "pictures", "options": {"mask_values": values.tolist()}}
    replace(known, preprocessing=replace(known.preprocessing, reader=reader)).save(copy)
    for name, folder in (("labels", deployed), ("values", copy)):
        where = ["--images", run / "pictures", "--destination", tmp_path / name]
        assert calibrate("apply", "--deployed", folder, *where) == 0
    shutil.rmtree(copy)
    for path in (tmp_path / "labels").glob("*.safetensors"):
        labels, found = (load_file(tmp_path / name / path.name) for name in ("labels", "values"))
        np.testing.assert_array_equal(found["mask"].numpy(), values[labels["mask"].numpy()])
        assert (found["confidence"] == labels["confidence"]).all()
        picture = np.asarray(Image.open(tmp_path / "values" / f"{path.stem}_mask.png"))
        np.testing.assert_array_equal(picture, found["mask"].numpy())


def test_a_bundle_is_whole_by_itself(run, deployed, tmp_path):
    """It takes images where the run is not, and redeploying replaces it."""
    options = ["--calibration", run / "calibration", "--pipeline", "cms_op(p)", "--bundle"]
    for _ in range(2):
        assert calibrate("deploy", *options, "--destination", tmp_path / "here") == 0
    there = (tmp_path / "here").rename(tmp_path / "there")
    known = Deployment.load(there)
    assert [member.checkpoint for member in known.members] == ["networks/0.ckpt", "networks/1.ckpt"]
    assert [member.sha256 for member in known.members] == [m.sha256 for m in Deployment.load(deployed).members]
    one = next((run / "pictures").iterdir())
    first, second = (CalibratedEnsemble.load(folder).scores_of([one])[0] for folder in (deployed, there))
    assert (first == second).all()


def test_workers_write_the_same_bytes(run, deployed, tmp_path):
    common = ["--deployed", deployed, "--images", run / "pictures", "--trust", "true"]
    for name, more in (("one", []), ("two", ["--workers", 2])):
        assert calibrate("apply", *common, "--destination", tmp_path / name, *more) == 0
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("one", "two")
    )
    assert one == two


def test_a_device_that_is_not_here_is_told(run, deployed, tmp_path, capsys):
    for command, more in (("apply", ["--destination", tmp_path / "maps"]), ("monitor", [])):
        where = ["--deployed", deployed, "--outputs", run / "outputs", "--device", "gpu7"]
        assert calibrate(command, *where, *more) == 2
        assert "error: device gpu7 cannot be used here (" in capsys.readouterr().err


def test_a_case_that_fails_costs_no_other(run, deployed, tmp_path, capsys):
    shutil.copytree(run / "pictures", tmp_path / "pictures")
    broken = sorted((tmp_path / "pictures").iterdir())[0]
    broken.write_bytes(b"no picture")
    where = ["--deployed", deployed, "--images", tmp_path / "pictures", "--destination", tmp_path / "maps"]
    assert calibrate("apply", *where) == 2
    told = capsys.readouterr().err
    assert "1 of 24 cases failed, the others are written" in told
    assert f"  {broken.stem}: cannot identify image file '{broken}'" in told
    assert len(list((tmp_path / "maps").glob("*.safetensors"))) == 23


def test_volumes_keep_their_geometry(scans, tmp_path):
    common = ["--deployed", scans / "deployed"]
    images = scans.parents[1] / "data" / "images"
    assert calibrate("apply", *common, "--images", images, "--destination", tmp_path / "a") == 0
    assert calibrate("apply", *common, "--outputs", scans / "outputs", "--destination", tmp_path / "b") == 0
    store = OutputStore(scans / "outputs")
    for case in store:
        for kind in ("mask", "confidence", "probs"):
            first, second = (nibabel.load(tmp_path / part / f"{case.case_id}_{kind}.nii.gz") for part in "ab")
            np.testing.assert_array_equal(first.affine, nibabel.load(images / f"{case.case_id}.nii.gz").affine)
            np.testing.assert_allclose(first.get_fdata(), second.get_fdata(), atol=2e-5)
        assert first.get_data_dtype() == np.uint16
        assert first.shape == (12, 11, 10, 2)
        outside = ~case.valid.numpy().T
        assert outside.any()
        np.testing.assert_allclose(first.get_fdata()[outside], [[1, 0]] * outside.sum(), atol=1e-7)
        np.testing.assert_allclose(first.get_fdata().sum(-1), 1, atol=2e-5)


def test_it_goes_on_where_it_stopped(run, deployed, tmp_path, capsys):
    where = ["--outputs", run / "outputs", "--destination", tmp_path, "--json"]
    calibrate("apply", "--deployed", deployed, *where)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    (tmp_path / names[0]).unlink()  # lost
    (tmp_path / names[1]).write_bytes(b"half")  # cut off
    (tmp_path / "records" / f"{names[2].split('.')[0]}.json").unlink()  # interrupted before its record
    before = (tmp_path / names[3]).stat().st_mtime_ns
    capsys.readouterr()
    assert calibrate("apply", "--deployed", deployed, *where) == 0
    assert json.loads(capsys.readouterr().out)["written_now"] == 3
    assert (tmp_path / names[3]).stat().st_mtime_ns == before
    calibrate("apply", "--deployed", deployed, *where, "--precision", "8bit")
    assert json.loads(capsys.readouterr().out)["written_now"] == 24  # another precision: everything again


def test_what_does_not_fit_is_refused(run, deployed, scans, tmp_path, capsys):
    to = ["--destination", tmp_path]
    assert calibrate("apply", "--deployed", deployed, "--outputs", scans / "outputs", *to) == 2
    assert "class_names" in capsys.readouterr().err
    assert calibrate("apply", "--deployed", deployed, *to) == 2
    assert "either --outputs or --images" in capsys.readouterr().err
    assert calibrate("apply", "--deployed", deployed, "--images", tmp_path / "nowhere", *to) == 2
    assert "does not exist" in capsys.readouterr().err
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "deep.png")
    assert calibrate("apply", "--deployed", deployed, "--images", tmp_path / "deep.png", *to) == 2
    assert "deep.png" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J"])
def test_images_whose_names_cannot_be_printed_are_refused(tmp_path, name):
    for each in ("sound", name):
        (tmp_path / f"{each}.png").touch()
    with pytest.raises(DeploymentError, match=r"'a\\.* cannot name maps: no slashes.*; rename the image"):
        list(find_cases(tmp_path, (".png",)))


def test_files_of_one_channel_each_are_one_case(tmp_path):
    for name in ("a_0000", "a_0001", "b_0000", "b_0001"):
        (tmp_path / f"{name}.nii.gz").touch()
    assert [case for case, _ in find_cases(tmp_path, (".nii.gz",), channels=2)] == ["a", "b"]
    assert len(list(find_cases(tmp_path, (".nii.gz",), channels=1))) == 4
    (tmp_path / "b_0001.nii.gz").unlink()
    (tmp_path / "a_0002.nii.gz").touch()
    with pytest.raises(ValueError, match="3 files"):
        list(find_cases(tmp_path, (".nii.gz",), channels=2))
