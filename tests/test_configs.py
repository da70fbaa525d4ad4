"""Every config is run end to end on tiny data in its data set's layout, and on the real data where they are."""

import importlib
from pathlib import Path

import pytest
import torch
import yaml

from lightning_calib.outputs.store import OutputStore
from tests.layouts import (
    write_brats,
    write_camvid,
    write_cityscapes,
    write_decathlon,
    write_folder,
    write_massroads,
)
from tests.training import train

CONFIGS = Path(__file__).parents[1] / "configs"
TINY = {"class_path": "tests.training.TinyNetwork"}


def tiny_brats(root):
    write_brats(root / "pool", patients=2, first=10)
    return write_brats(root / "train")


# For each config: what writes its data, and what tiny data need to be told besides.
RUNS = {
    "shapes": (None, {"num_train": 4, "num_val": 2, "num_pool": 3, "size": [32, 32]}),
    "camvid": (
        lambda root: write_camvid(root, train=40, val=3, test=3),
        {"image_size": [32, 48], "crop_size": [32, 32], "block": 5},
    ),
    "massroads": (write_massroads, {"pool_size": 3, "crop_size": [32, 32]}),
    "massroads_crops": (write_massroads, {"crop": 24, "crop_size": [32, 32], "val_fraction": 0.3}),
    "cityscapes": (write_cityscapes, {"crop_size": [32, 64], "val_fraction": 0.3}),
    "brats": (tiny_brats, {"patch_size": [16, 16, 16], "val_fraction": 0.3}),
    "hippocampus": (write_decathlon, {"patch_size": [16, 16, 16], "val_fraction": 0.3}),
    "nuclei": (
        write_folder,
        {"class_names": ["background", "disc", "rod"], "crop_size": [32, 32], "pool_regex": "_b$"},
    ),
    "folder": (
        write_folder,
        {"class_names": ["background", "disc", "rod"], "crop_size": [32, 32], "val_fraction": 0.3},
    ),
}


def shrink(config, folder, **data):
    """The same config for a machine without GPU and a run of two steps."""
    window = config["model"].get("inference", {}).get("window")
    if window:
        config["model"]["inference"]["window"] = [32] * len(window)
    config["data"].setdefault("init_args", {}).update(
        {"batch_size": 2, "samples_per_epoch": 4, "num_workers": 0, **data}
    )
    config["trainer"] |= {"max_epochs": 1, "precision": "32-true", "accelerator": "cpu", "logger": False}
    config["trainer"]["enable_progress_bar"] = False
    config["runs_dir"] = str(folder / "runs")
    return config


def run_and_open(config, folder):
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    train("fit", path)
    train("predict", path)
    return OutputStore(folder / "runs" / config["name"] / "outputs")


def test_every_config_has_a_run():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_config_runs_end_to_end(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_CALIB_CACHE", str(tmp_path / "cache"))
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    write, options = RUNS[name]
    if write is not None:
        options = options | {"root": str(write(tmp_path / "data"))}
    if name == "brats":
        options["pool_root"] = str(tmp_path / "data" / "pool")
    config["model"]["network"] = TINY
    store = run_and_open(shrink(config, tmp_path, **options), tmp_path)
    store.verify()
    assert len(store) >= 2
    for case in store:
        assert case.logits.shape == (1, store.manifest.num_classes, *case.shape)
        assert case.logits.isfinite().all()
    if name == "brats":
        assert all(not case.valid.all() for case in store)
        assert all(case.geometry for case in store)


@pytest.mark.parametrize("name", RUNS)
def test_the_network_of_a_config_can_be_built(name):
    network = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["model"]["network"]
    module, _, cls = network["class_path"].rpartition(".")
    options = getattr(importlib.import_module(module), cls)(**network.get("init_args", {}))
    dims = 3 if name in ("brats", "hippocampus") else 2
    with torch.device("meta"):  # shapes without numbers: some of these networks have 100 million weights
        model = options.build(in_channels=3, num_classes=4, spatial_dims=dims).eval()
        images = torch.zeros(1, 3, *[2 * divisor for divisor in model.divisor])
    assert model.logits(images).shape == (1, 4, *images.shape[2:])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("camvid", {"image_size": [64, 96], "crop_size": [64, 64]}),
        ("hippocampus", {"patch_size": [24, 32, 24]}),
        ("massroads", {"division": "official", "crop_size": [64, 64], "image_size": [128, 128]}),
        ("nuclei", {"crop_size": [64, 64]}),
    ],
)
def test_real_data_load_train_and_predict(name, options, tmp_path, request):
    root = request.getfixturevalue(f"{name}_root")
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config = shrink(config, tmp_path, root=str(root), **options)
    config["trainer"] |= {"limit_train_batches": 2, "limit_val_batches": 2, "limit_predict_batches": 3}
    store = run_and_open(config, tmp_path)
    assert len(store) == 3
    for case in store:
        assert case.logits.shape == (1, store.manifest.num_classes, *case.shape)
        assert len(case.target.unique()) >= 2
