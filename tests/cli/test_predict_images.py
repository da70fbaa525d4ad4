"""train.py predict --images: scores of new images, with and without the training data."""

import re
import shutil

import pytest
import yaml

from lightning_calib.outputs.store import OutputStore
from tests.deployment.runs import calibrate
from tests.layouts import write_folder
from tests.training import refused, tiny_config, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two members on a folder of images, with outputs."""
    folder = tmp_path_factory.mktemp("trained")
    write_folder(folder / "data", cases=10, size=(32, 32))
    path = tiny_config(folder, epochs=1)
    config = yaml.safe_load(path.read_text())
    options = {"root": str(folder / "data"), "class_names": ["a", "b", "c"], "batch_size": 4}
    config["data"] = {"class_path": "Folder", "init_args": options}
    path.write_text(yaml.safe_dump(config))
    for seed in (0, 1):
        train("fit", path, "--seed_everything", str(seed))
    train("predict", path)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, with the images of the pool set as new images."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "data" / "images", tmp_path / "tiny.yaml", tmp_path / "runs"):
        assert path.exists()
    known = OutputStore(tmp_path / "runs" / "tiny" / "outputs")
    (tmp_path / "new").mkdir()
    for case_id in known.case_ids:
        shutil.copy(tmp_path / "data" / "images" / f"{case_id}.png", tmp_path / "new")
    return tmp_path


def config_of(folder):
    """The config, its paths being those of the copy."""
    path = folder / "tiny.yaml"
    config = yaml.safe_load(path.read_text())
    config["data"]["init_args"]["root"], config["runs_dir"] = str(folder / "data"), str(folder / "runs")
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("lost", ["data", "outputs", None])
def test_scores_are_those_of_the_pool_set(run, lost, capsys):
    """Where the run has outputs, the training data need not be there; where it has none, they are asked."""
    known = OutputStore(run / "runs" / "tiny" / "outputs")
    expected = {case.case_id: case.logits.clone() for case in known}
    if lost is not None:
        shutil.rmtree(run / "data" if lost == "data" else known.path)
    train("predict", config_of(run), "--images", str(run / "new"))
    store = OutputStore(run / "runs" / "tiny" / "outputs-new")
    assert store.manifest.labelled is False
    assert [member.sha256 for member in store.manifest.members] == [m.sha256 for m in known.manifest.members]
    assert set(store.case_ids) == set(expected)
    for case in store:
        assert (case.logits - expected[case.case_id]).abs().max() < 1e-5
    capsys.readouterr()
    assert calibrate("run", "--outputs", store.path, "--pipelines", "ts(p)") == 2
    assert "holds no targets" in capsys.readouterr().err


def test_options_of_the_store(run):
    line = ["--images", str(run / "new"), "--outputs.folder", "june", "--outputs.keep", "pooled"]
    train("predict", config_of(run), *line, "--outputs.members", "[1]", "--outputs.dtype", "float16")
    manifest = OutputStore(run / "runs" / "tiny" / "june").manifest
    assert (manifest.keep, manifest.dtype, [member.name for member in manifest.members]) == ("pooled", "float16", ["1"])


def test_what_cannot_be_done_is_said(run, capsys):
    path = config_of(run)
    refused(capsys, "--images goes without --corruption", "predict", path, "--images", "new", "--corruption", "mild")
    refused(capsys, "does not exist: name a folder of images", "predict", path, "--images", str(run / "nowhere"))
    shutil.rmtree(run / "data")
    shutil.rmtree(run / "runs" / "tiny" / "outputs")
    told = re.escape("outputs is not there, so that the training data must say how images are read, but")
    refused(capsys, told, "predict", path, "--images", str(run / "new"))
