"""The selected fit of a search, made once more under a Trainer."""

import csv

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import CSVLogger

from lightning_calib.experiment.fitting import curve_rows
from lightning_calib.experiment.search.search import search
from lightning_calib.outputs.stored import StoredOutputsDataModule
from tests.stores import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("final") / "outputs", cases=8, num_classes=3, shape=(12, 12))


def module(store, **options):
    return StoredOutputsDataModule(store, cal=4, val=2, batch_voxels=200, **options)


def trainer(max_epochs=300, **options):
    silent = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(**{"accelerator": "cpu", "max_epochs": max_epochs, "logger": False, **silent, **options})


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("cms_op(p)", "newton"),
        ("cdc(z)", "newton"),
        ("ets(p)", "slsqp"),
        ("ms(z)", "adam"),
        ("lts_ti(z)", "adam"),
        ("lts_ti(z)", "lbfgs"),
    ],
)
def test_the_trainer_gives_the_bits_of_the_trial(store, name, solver):
    found = search(name, module(store), trials=3, seed=1, solver=solver, max_epochs=12, accelerator="cpu")
    assert not found.identity_won
    assert (found.start is None) == (solver in ("adam", "lbfgs") or name == "ets(p)")
    torch.manual_seed(5)  # nothing depends on it
    task = found.final_fit(trainer())
    for key, value in found.calibrator.state_dict().items():
        assert torch.equal(task.calibrator.state_dict()[key], value)
    assert task.machine.describe() == found.certificate
    assert curve_rows(task.machine, task.curve) == found.curve
    assert (task.val_nll, task.identity_nll) == (found.val_nll, found.identity_val_nll)


def test_nothing_is_fitted_where_the_identity_won(store):
    found = search("identity(p0)", module(store))
    assert found.final_fit(trainer()) is None
    lost = search("ts(z)", module(store), accelerator="cpu")
    assert lost.identity_won
    assert lost.final_fit(trainer()) is None


def test_a_trainer_that_ends_early_is_refused(store):
    for name, solver in (("cms_op(p)", "auto"), ("ms(z)", "adam")):
        found = search(name, module(store), trials=1, solver=solver, max_epochs=5, accelerator="cpu")
        with pytest.raises(ValueError, match=r"after 1 epochs; leave it 300 \(max_epochs\)"):
            found.final_fit(trainer(max_epochs=1))


def test_trackers_get_the_passes_as_they_come(store, tmp_path):
    found = search("cms_op(p)", module(store), trials=1, accelerator="cpu")
    task = found.final_fit(trainer(logger=CSVLogger(tmp_path, name="", version=""), log_every_n_steps=1))
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    objectives = [float(row["fit/objective"]) for row in rows if row.get("fit/objective")]
    assert objectives == pytest.approx(task.certificate.history)
    assert [float(row["val/nll"]) for row in rows if row.get("val/nll")] == pytest.approx([found.val_nll])
