"""New images go the way of the training images, where nothing of the training data is left."""

import json
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import load_file

from lightning_calib.datasets.preprocessing import PreprocessingError, record
from lightning_calib.datasets.readers import read_image
from lightning_calib.datasets.registry import READERS
from lightning_calib.deployment import CalibratedEnsemble
from lightning_calib.kit.files import sha256
from tests.deployment.runs import calibrate, calibrated_run
from tests.training import tiny_config


def write_pictures(folder, number=20):
    rng = np.random.default_rng(0)
    for name in (f"p{n:02d}.png" for n in range(number)):
        mask = np.zeros((18, 26), np.uint8)
        mask[4:12, 5:20] = 1
        image = np.clip(90 + 70 * mask[..., None] + rng.normal(0, 25, (18, 26, 3)), 0, 255).astype(np.uint8)
        for part, array in (("images", image), ("masks", mask)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(folder / part / name)


@pytest.fixture(scope="module")
def negatives(tmp_path_factory):
    """A run on a data set from outside, with its own reader; its training data are gone."""
    folder = tmp_path_factory.mktemp("negatives")
    write_pictures(folder / "data")
    path = tiny_config(folder, epochs=1)
    config = yaml.safe_load(path.read_text())
    options = {"root": str(folder / "data"), "class_names": ["rest", "core"], "pool_fraction": 0.6, "batch_size": 4}
    config["data"] = {"class_path": "tests.deployment.outside.Negatives", "init_args": options}
    path.write_text(yaml.safe_dump(config))
    run = calibrated_run(path, "identity(p),ts(p)", repeats=1)
    shutil.move(folder / "data" / "images", folder / "pictures")
    shutil.rmtree(folder / "data")
    assert calibrate("deploy", "--calibration", run / "calibration", "--pipeline", "ts(p)") == 0
    return run


def test_a_reader_from_outside_is_used_and_the_training_data_are_not(negatives, tmp_path):
    pictures = negatives.parents[1] / "pictures"
    common = ["--deployed", negatives / "deployed", "--precision", "float32"]
    assert calibrate("apply", *common, "--images", pictures, "--destination", tmp_path / "a", "--trust") == 0
    assert calibrate("apply", *common, "--outputs", negatives / "outputs", "--destination", tmp_path / "b") == 0
    stored = sorted((tmp_path / "b").glob("*.safetensors"))
    assert len(stored) == 12
    for path in stored:
        first, second = load_file(tmp_path / "a" / path.name), load_file(path)
        assert (first["probs"] - second["probs"]).abs().max() < 1e-5


def test_a_reader_from_outside_is_imported_only_where_it_is_trusted(negatives, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(READERS, "registered", {})  # as in a new process
    where = ["--images", negatives.parents[1] / "pictures", "--destination", tmp_path]
    assert calibrate("apply", "--deployed", negatives / "deployed", *where) == 2
    told = capsys.readouterr().err
    assert "tests.deployment.outside.ReadNegative" in told
    assert "--trust" in told


def as_written_by_version_1(run, folder):
    """A copy of a run as the first version left it: no preprocessing in the store, old class paths."""
    shutil.copytree(run, folder)
    manifest = folder / "outputs" / "manifest.json"
    facts = json.loads(manifest.read_text()) | {"format_version": 1}
    del facts["preprocessing"]
    manifest.write_text(json.dumps(facts))
    (manifest.parent / "checksums.json").unlink()  # on purpose
    config = folder / "members" / "0" / "config.yaml"
    (config.parent / "checksums.json").unlink()  # which that version did not write
    config.write_text(config.read_text().replace("lightning_calib.datasets.", "lightning_calib.data."))
    (folder / "calibration" / "checksums.json").unlink()
    settings = folder / "calibration" / "settings.json"
    recorded = json.loads(settings.read_text()) | {"outputs_sha256": sha256(manifest), "outputs": str(manifest.parent)}
    settings.write_text(json.dumps(recorded))
    return folder


def test_outputs_of_an_earlier_version_take_it_from_the_training_config(run, deployed, tmp_path):
    older = as_written_by_version_1(run, tmp_path / "older")
    with pytest.warns(UserWarning, match="needs the training data"):
        assert calibrate("deploy", "--calibration", older / "calibration", "--pipeline", "cms_op(p)") == 0
    ours, theirs = (json.loads((folder / "deployment.json").read_text()) for folder in (older / "deployed", deployed))
    same = {key: value for key, value in theirs["preprocessing"].items() if key != "inference"}  # there in full
    assert ours["preprocessing"] == same | {"inference": None}
    assert ours["preprocessing"]["reader"] == {
        "name": "pictures",
        "options": {"mask_values": None, "ignore_index": None},
    }


def test_a_deployment_of_an_earlier_version_loads(run, deployed, scans, tmp_path):
    old = {"image": {"normalization": "imagenet", "image_size": [8, 12], "content_only": False, "spacing": None}}
    old["volume"] = {"normalization": "imagenet", "image_size": None, "content_only": True, "spacing": [1.0, 1.0, 2.0]}
    for kind, folder, channels in (("image", run, 3), ("volume", scans, 1)):
        copy = tmp_path / kind
        for part in ("deployed", "members"):
            shutil.copytree(folder / part, copy / part)
        (copy / "deployed" / "checksums.json").unlink()
        path = copy / "deployed" / "deployment.json"
        facts = json.loads(path.read_text()) | {"format_version": 1, "inference": {"window": None, "mirror_axes": [0]}}
        facts["preprocessing"] = {"kind": kind, "in_channels": channels} | old[kind]
        path.write_text(json.dumps(facts))
        ensemble = CalibratedEnsemble.load(copy / "deployed")
        assert ensemble.members.inference.mirror_axes == (0,)
        loaded = ensemble.deployment.preprocessing
        assert loaded.image_size == ((8, 12) if kind == "image" else None)
        assert loaded.reader["name"] == ("pictures" if kind == "image" else "volumes")
    assert (ensemble.load_image.read.content_only, ensemble.load_image.read.spacing) == (True, [1.0, 1.0, 2.0])


def test_what_cannot_be_written_down_is_refused():
    with pytest.raises(PreprocessingError, match="at the top of a module"):
        record(lambda case: None)
    with pytest.raises(PreprocessingError, match="no dataclass"):
        record(np.random.default_rng(0))
    assert record(read_image) == {"name": "lightning_calib.datasets.readers.read_image", "options": {}}


def test_the_store_and_the_deployment_say_how_images_are_read(negatives):
    manifest = json.loads((negatives / "outputs" / "manifest.json").read_text())
    deployment = json.loads((negatives / "deployed" / "deployment.json").read_text())
    reader = {"name": "tests.deployment.outside.ReadNegative", "options": {"dim": 2}}
    assert manifest["preprocessing"]["reader"] == reader
    assert deployment["preprocessing"] == manifest["preprocessing"]
