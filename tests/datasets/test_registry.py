"""Data sets by name, ours and others, and where they were in earlier versions."""

import pytest
import yaml

from lightning_calib.datasets.registry import DATASETS, current_class_path, current_class_paths, register_dataset
from lightning_calib.datasets.shapes import Shapes
from tests.training import tiny_config, train


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(DATASETS, "registered", {})


class Blobs(Shapes):
    """A data set of a script."""


def test_ours_are_found_by_the_names_of_their_classes():
    assert [cls.__name__ for cls in DATASETS.values()] == list(DATASETS)
    with pytest.raises(ValueError, match="did you mean CamVid"):
        DATASETS["Camvid"]


def test_others_can_be_registered():
    assert register_dataset(Blobs) is Blobs
    assert current_class_path("Blobs") == "tests.datasets.test_registry.Blobs"
    with pytest.raises(TypeError, match="not a subclass of SegmentationDataModule"):
        register_dataset(int)


def test_paths_of_earlier_versions_are_understood():
    old = {"data": {"class_path": "lightning_calib.data.camvid.CamVid", "init_args": {"root": "data/camvid"}}}
    new = {"data": {"class_path": "lightning_calib.datasets.camvid.CamVid", "init_args": {"root": "data/camvid"}}}
    assert current_class_paths(old) == new
    assert current_class_paths([old, 1]) == [new, 1]
    stored = "outputs.stored.StoredOutputsDataModule"
    assert current_class_path("lightning_calib.data.stored.StoredOutputsDataModule") == f"lightning_calib.{stored}"


def test_a_config_names_a_data_set_by_its_class_alone(tmp_path):
    path = tiny_config(tmp_path, epochs=1)
    config = yaml.safe_load(path.read_text())
    config["data"]["class_path"] = "Shapes"
    path.write_text(yaml.safe_dump(config))
    train("fit", path)
    assert (tmp_path / "runs" / "tiny" / "members" / "0" / "finished.json").is_file()
