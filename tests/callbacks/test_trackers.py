"""Trackers: metrics, config and sample images reach each that takes them."""

import csv

import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_calib.callbacks.overlays import SampleOverlays, overlay
from tests.training import tiny_config, train


def logger(kind, **arguments):
    return {"class_path": f"pytorch_lightning.loggers.{kind}", "init_args": {"save_dir": "logs", **arguments}}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A member's folder after a training that three trackers watched."""
    folder = tmp_path_factory.mktemp("tracked")
    trackers = [
        logger("CSVLogger", name="csv"),
        logger("TensorBoardLogger", name="tensorboard"),
        logger("WandbLogger", project="tests", offline=True),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        train("fit", tiny_config(folder, logger=trackers), "--overlays.every_n_epochs", "1")
    return folder / "runs" / "tiny" / "members" / "0"


def test_csv_holds_the_metrics(tracked):
    with (tracked / "logs" / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for key in ("train/loss", "val/loss", "val/dice", "val/ece"):
        values = [float(row[key]) for row in rows if row[key]]
        assert len(values) == 2
        assert np.isfinite(values).all()


def test_tensorboard_holds_metrics_and_images(tracked):
    events = EventAccumulator(str(tracked / "logs" / "tensorboard" / "version_0"))
    events.Reload()
    tags = events.Tags()
    assert {"train/loss", "val/loss", "val/dice", "val/ece"} <= set(tags["scalars"])
    assert any(tag.startswith("val/overlays/") for tag in tags["images"])


def test_wandb_offline_files_hold_metrics_config_and_images(tracked):
    (run,) = (tracked / "logs" / "wandb").glob("offline-run-*")
    pictures = list((run / "files" / "media" / "images").rglob("*.png"))
    assert len(pictures) >= 2
    (record,) = run.glob("*.wandb")
    content = record.read_bytes()
    for word in (b"val/dice", b"val/ece", b"train/loss", b"max_epochs", b"class_path"):
        assert word in content


def test_the_config_is_kept_beside_the_member(tracked):
    config = yaml.safe_load((tracked / "config.yaml").read_text())
    assert config["model"]["network"]["class_path"] == "tests.training.TinyNetwork"
    assert config["trainer"]["max_epochs"] == 2


def test_overlays_show_image_target_and_prediction_side_by_side():
    image = torch.linspace(0, 1, 48).reshape(1, 6, 8)
    target = torch.zeros(6, 8, dtype=torch.long)
    target[2:4] = 1
    target[5] = 255
    prediction = torch.ones(6, 8, dtype=torch.long)
    picture = overlay(image, target, prediction, ignore_index=255)
    plain, truth, guess = np.split(picture, 3, axis=1)
    assert (plain[..., 0] == plain[..., 1]).all()
    assert (truth[5] == plain[5]).all()  # ignored: uncoloured
    assert (truth[2:4] == guess[2:4]).all()
    assert not (truth[:2] == guess[:2]).all()


def test_a_volume_is_shown_at_its_fullest_slice():
    target = torch.zeros(4, 6, 8, dtype=torch.long)
    target[3, 2:5] = 1
    image = torch.arange(4.0)[None, :, None, None].expand(2, 4, 6, 8)
    plain = overlay(image, target, target)[:, :8]
    assert plain.shape == (6, 8, 3)
    assert (overlay(image, target, target)[:, 8:16] != overlay(image, 0 * target, target)[:, 8:16]).any()


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="every_n_epochs 0"):
        SampleOverlays(every_n_epochs=0)
