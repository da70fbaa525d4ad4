"""CalibrationTask under an ordinary Trainer: all solvers, resuming, early stopping, tests."""

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer

from lightning_calib.calibrators import CALIBRATORS, build
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers.fit import fit, takes_epochs
from lightning_calib.tasks.calibration import CalibrationTask
from tests.stores import write_store

SILENT = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("task") / "outputs", cases=12)


def make(store, name, solver="auto", **options):
    data = StoredOutputsDataModule(store, pooling="z", cal=6, val=3)
    data.batch_voxels = 600
    task = CalibrationTask(name, data.num_classes, ignore_index=data.ignore_index, solver=solver, **options)
    data.train_batches = task.batches
    return task, data


def slow_nll(calibrator, data, part):
    """Mean of -log q_y over a part, voxel by voxel in float64 numpy."""
    values = []
    for logits, target, _ in data.batches(part):
        log_probs = calibrator(logits.double()).detach().numpy()[0]
        for place in np.ndindex(*target.shape[1:]):
            label = int(target[0][place])
            if label != data.ignore_index:
                values.append(-log_probs[(label, *place)])
    return float(np.mean(values))


@pytest.mark.parametrize("name", ["ts", "ets", "cms_op"])
def test_full_batch_solvers_give_the_result_of_the_plain_fit(store, name):
    task, data = make(store, name)
    trainer = Trainer(max_epochs=300, **SILENT)
    trainer.fit(task, data)
    plain = build(name, data.num_classes)
    certificate = fit(plain, data.batches("cal"), ignore_index=data.ignore_index)
    assert task.certificate.converged
    assert task.certificate.objective == pytest.approx(certificate.objective, abs=1e-9)
    for logits, _, _ in data.batches("test"):
        torch.testing.assert_close(task(logits), plain(logits), rtol=0, atol=1e-6)
    epochs = certificate.passes if name != "ets" else 1
    assert [epoch for epoch, _ in task.curve] == list(range(1, epochs + 1))
    assert task.val_nll == task.curve[-1][1] == pytest.approx(slow_nll(plain, data, "val"), abs=1e-6)
    assert task.identity_nll == pytest.approx(slow_nll(build("identity", 4), data, "val"), abs=1e-6)
    assert float(trainer.callback_metrics["fit/objective"]) == pytest.approx(certificate.objective, abs=1e-6)


def test_newton_resumes_where_it_was_interrupted(store, tmp_path):
    def run(epochs, start=None):
        task, data = make(store, "cms_ap")
        trainer = Trainer(max_epochs=epochs, **SILENT)
        trainer.fit(task, data, ckpt_path=start, weights_only=True)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return task, data

    whole, data = run(299)
    assert whole.certificate.passes > 1
    assert run(1)[0].certificate is None
    for epochs, start in ((300, "1.ckpt"), (301, "300.ckpt")):  # in the middle; after the end
        resumed, _ = run(epochs, tmp_path / start)
        assert resumed.certificate.to_dict() == whole.certificate.to_dict()
        assert resumed.curve == whole.curve
        for logits, _, _ in data.batches("test"):
            assert torch.equal(resumed(logits), whole(logits))


def test_the_penalty_over_experts_is_a_sum_on_request(store):
    objectives = {}
    for reduction in ("mean", "sum"):
        task, data = make(store, "cdc", lam=1.0, mu=1.0, reduction=reduction)
        Trainer(max_epochs=300, **SILENT).fit(task, data)
        penalty = task.calibrator.penalty(1.0, 1.0, reduction).item()
        objectives[reduction] = slow_nll(task.calibrator, data, "cal") + penalty
        assert task.certificate.objective == pytest.approx(objectives[reduction], abs=1e-5)
    assert objectives["sum"] > objectives["mean"]


def test_adam_approaches_the_optimum_from_above(store):
    exact, data = make(store, "ms_c")
    Trainer(max_epochs=300, **SILENT).fit(exact, data)
    adam, data = make(store, "ms_c", "adam", lr=3e-2, patience=50)
    Trainer(max_epochs=60, **SILENT).fit(adam, data)

    def objective(task):
        penalty = task.calibrator.penalty(task.options["lam"], task.options["mu"]).item()
        return slow_nll(task.calibrator, data, "cal") + penalty

    best, reached = objective(exact), objective(adam)
    assert best - 1e-6 <= reached < best + 0.02
    assert adam.val_nll == pytest.approx(slow_nll(adam.calibrator, data, "val"), abs=1e-6)
    assert adam.val_nll == min(nll for _, nll in adam.curve)


def test_adam_stops_early_halves_the_rate_and_keeps_the_best_epoch(store):
    task, data = make(store, "ms", "adam", lr=1.0, patience=4)  # far too fast: it gets worse soon
    trainer = Trainer(max_epochs=300, **SILENT)
    trainer.fit(task, data)
    losses = [task.identity_nll, *(nll for _, nll in task.curve)]
    assert len(losses) < 100
    assert min(losses[-4:]) >= min(losses[:-4])
    assert task.machine.optimizer.param_groups[0]["lr"] < 1.0
    assert slow_nll(task.calibrator, data, "val") == pytest.approx(min(losses), abs=1e-6)


def test_adam_keeps_the_identity_where_no_epoch_is_better(store):
    task, data = make(store, "ms", "adam", lr=1e4, patience=1)
    Trainer(max_epochs=2, **SILENT).fit(task, data)
    assert task.val_nll == task.identity_nll
    assert torch.equal(task.calibrator.weight, torch.eye(4))


def test_adam_stays_within_bounds(store):
    task, data = make(store, "cms_op", "adam", lr=0.3)
    Trainer(max_epochs=1, limit_val_batches=0, **SILENT).fit(task, data)
    assert float(task.calibrator.inner.detach().min()) == 0
    assert (task.calibrator.inner.detach() != build("cms_op", 4).inner.detach()).any()


@pytest.mark.parametrize("name", ["lts", "lts_ti"])
def test_local_calibrators_train_on_images(store, name):
    torch.manual_seed(0)  # the gates start at random
    task, data = make(store, name, "adam", lr=2e-3)
    data.crop = [12, 12]
    Trainer(max_epochs=6, **SILENT).fit(task, data)
    assert task.val_nll < task.identity_nll


@pytest.mark.parametrize("name", ["lts", "lts_ti"])
def test_local_calibrators_are_fitted_on_samples(store, name):
    torch.manual_seed(0)
    task, data = make(store, name, weight_decay=1e-2)
    Trainer(max_epochs=20, **SILENT).fit(task, data)
    assert (task.solver, task.batches) == ("lbfgs", "cases")
    assert task.certificate.passes == len(task.curve)
    assert task.val_nll == pytest.approx(slow_nll(task.calibrator, data, "val"), abs=1e-6)
    assert task.val_nll < task.identity_nll


def slow_case_nll(calibrator, logits, target):
    log_probs = calibrator(logits).detach().double().numpy()[0]
    labels = target[0].numpy()
    return np.mean([-log_probs[(labels[i], *i)] for i in np.ndindex(*labels.shape) if labels[i] != 255])


@pytest.mark.parametrize("name", [n for n in CALIBRATORS if build(n, 4).preserves and n not in ("identity", "stack")])
def test_preserving_calibrators_never_flip(store, name):
    task, data = make(store, name)
    Trainer(max_epochs=2 if takes_epochs(task.solver) else 300, **SILENT).fit(task, data)
    for part in ("cal", "val", "test"):
        for logits, _, _, *features in data.batches(part):
            assert torch.equal(task.calibrator(logits, *features).argmax(1), logits.argmax(1))


def test_bad_use_is_refused(store):
    with pytest.raises(ValueError, match="unknown calibrator 'nope'"):
        CalibrationTask("nope", 3)
    with pytest.raises(ValueError, match="patience = 0"):
        CalibrationTask("ts", 3, patience=0)
    task, data = make(store, "identity")
    with pytest.raises(ValueError, match="identity has nothing to fit"):
        Trainer(max_epochs=1, **SILENT).fit(task, data)
    task, data = make(store, "lts", solver="newton")
    with pytest.raises(ValueError, match="newton cannot fit lts"):
        Trainer(max_epochs=1, **SILENT).fit(task, data)


FITS = [("cms_ap", "newton"), ("ms", "adam"), ("lts_ti", "lbfgs"), ("ets", "slsqp")]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize(("name", "solver"), FITS)
def test_lightnings_own_checkpoints_take_a_fit_up_again(store, tmp_path, name, solver):
    def run(epochs, start=None):
        torch.manual_seed(0)
        task, data = make(store, name, solver, lr=3e-2, patience=4)
        options = SILENT | {"enable_checkpointing": start is None, "default_root_dir": tmp_path / str(epochs)}
        trainer = Trainer(max_epochs=epochs, **options)
        trainer.fit(task, data, ckpt_path=start, weights_only=True)
        return task, trainer.checkpoint_callback.best_model_path if start is None else None

    whole, _ = run(30)
    _, checkpoint = run(2 if solver != "slsqp" else 1)
    assert checkpoint, "Lightning counted no steps"
    resumed, _ = run(30, checkpoint)
    assert resumed.curve == whole.curve
    assert resumed.machine.describe() == whole.machine.describe()
    for key, value in whole.calibrator.state_dict().items():
        assert torch.equal(resumed.calibrator.state_dict()[key], value)
