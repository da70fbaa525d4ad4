"""Trackers: metrics, config and sample images reach each that takes them."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import Namespace
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_calib.callbacks.overlays import SampleOverlays, overlay
from lightning_calib.cli.ensemble import Job, train_member
from lightning_calib.cli.run_folder import MemberFolder
from lightning_calib.cli.trainer import name_loggers
from lightning_calib.experiment.tracking.trackers import known_mlflow_run
from lightning_calib.kit.files import sha256
from tests.references.wandb_file import wandb_records
from tests.training import tiny_config, train


def logger(kind, **arguments):
    return {"class_path": f"pytorch_lightning.loggers.{kind}", "init_args": {"save_dir": "logs"} | arguments}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A member's folder after a training that all trackers watched."""
    folder = tmp_path_factory.mktemp("tracked")
    trackers = [
        logger("CSVLogger", name="csv"),
        logger("TensorBoardLogger", name="tensorboard"),
        logger("WandbLogger", project="tests", offline=True),
        logger("MLFlowLogger", save_dir=str(folder / "mlflow")),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_RUN_ID", "of-a-sweep")
        patch.setenv("WANDB_SWEEP_ID", "sweep")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
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


def test_a_sweep_gets_exactly_one_wandb_run_which_names_the_member_and_its_checkpoints(tracked):
    (path,) = (tracked / "logs" / "wandb").rglob("*.wandb")
    records = wandb_records(path)
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.sweep_id) == ("of-a-sweep", "sweep")
    assert (run.display_name, run.run_group, run.job_type) == ("member-0", "tiny", "training")
    config = {item.key: json.loads(item.value_json) for r in records for item in r.config.update}
    assert config["checkpoints"] == {
        name: sha256(tracked / "checkpoints" / f"{name}.ckpt") for name in ("last", "best")
    }


def test_mlflow_names_the_member_and_its_checkpoints(tracked, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    uri = f"file:{tracked.parents[3] / 'mlflow'}"
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.info.run_name == "member-0"
    assert (run.data.tags["group"], run.data.tags["job_type"]) == ("tiny", "training")
    assert run.data.params["checkpoints.last"] == sha256(tracked / "checkpoints" / "last.ckpt")
    assert known_mlflow_run(uri, "tiny", run.data.tags["run_id"]) == run.info.run_id


def parsed(kind, **given):
    """A logger as the command line has parsed it."""
    return Namespace(class_path=f"pytorch_lightning.loggers.{kind}", init_args=Namespace(**given))


def test_the_same_line_names_the_same_runs(tmp_path, monkeypatch):
    for key in ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(key, raising=False)

    def named(member, name=None, id=None):
        loggers = [parsed("WandbLogger", name=name, id=id), parsed("TensorBoardLogger", version=None)]
        name_loggers(loggers, MemberFolder(tmp_path / str(member)), "run")
        return loggers[0], loggers[1].init_args.version

    wandb, version = named(1)
    assert version == 0
    assert wandb.init_args.name == "member-1"
    assert wandb.dict_kwargs == {"job_type": "training", "group": "run"}
    assert named(1)[0].init_args.id == wandb.init_args.id
    assert named(2)[0].init_args.id != wandb.init_args.id
    mine = named(1, name="mine", id="my-id")[0].init_args
    assert (mine.name, mine.id) == ("mine", "my-id")
    monkeypatch.setenv("WANDB_RUN_ID", "chosen")
    monkeypatch.setenv("WANDB_RUN_GROUP", "group")
    wandb, _ = named(1)
    assert wandb.init_args.id is None
    assert "group" not in wandb.dict_kwargs


def test_members_of_an_ensemble_do_not_share_the_run_of_the_ensemble(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "whole")
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")  # W&B refuses an empty one, so it must be gone
    tell = "import os; print(*(os.environ.get(f'WANDB_{key}') for key in ('RUN_ID', 'RUN_GROUP', 'SWEEP_ID')))"
    train_member(Job("3", [sys.executable, "-c", tell], tmp_path / "log", tmp_path / "progress"))
    assert (tmp_path / "log").read_text().split() == ["whole-3", "whole", "None"]


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
