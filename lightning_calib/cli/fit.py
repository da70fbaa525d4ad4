"""``calibrate.py fit``: one pipeline on one repeat, under a Lightning Trainer."""

from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer, seed_everything

from lightning_calib.calibrators import PipelineName
from lightning_calib.cli.doctor import require_healthy
from lightning_calib.cli.fitted import TRAINER, fit_folder, save_fit, say
from lightning_calib.experiment.fitting import curve_rows
from lightning_calib.functional.penalty import Reduction
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import SolverName
from lightning_calib.solvers.fit import takes_epochs
from lightning_calib.solvers.objective import LAM, MU
from lightning_calib.tasks.calibration import CalibrationTask


def fit(
    outputs: Path,
    pipeline: str,
    destination: Path | None = None,
    solver: SolverName = "auto",
    lam: float = LAM,
    mu: float = MU,
    reduction: Reduction = "mean",
    lr: float = 1e-2,
    patience: int = 20,
    weight_decay: float = 0.0,
    resume: Path | None = None,
    doctor: bool = True,
    trainer: Trainer = TRAINER,
    **data: Any,
) -> int:
    """Fit one pipeline on the cal part of one repeat, with fixed hyperparameters.

    Writes calibrator.safetensors, certificate.json, curve.csv, fit.json and split.json.

    Args:
        outputs: folder of the frozen outputs, such as runs/camvid/outputs.
        pipeline: calibrator and pooling, such as "cms_op(p)".
        destination: where to write; by default fits/<calibrator>-<pooling>-<repeat> beside the outputs.
        solver: newton, slsqp, lbfgs, adam, or auto for the one that suits the calibrator.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        reduction: mean or sum of the penalty over the experts of a conditional calibrator.
        lr: learning rate of adam.
        patience: epochs without a better NLL on val after which adam stops.
        weight_decay: l2 regularisation of lbfgs and adam.
        resume: checkpoint of an interrupted fit.
        doctor: examine the outputs first; an error stops the fit.
        trainer: options of Lightning's Trainer.
        **data: options of StoredOutputsDataModule.
    """
    name = PipelineName.parse(pipeline, imports=True)
    require_healthy(outputs, doctor)
    stored = StoredOutputsDataModule(outputs, pooling=name.pooling, train_batches="cases", **data)
    seed_everything(stored.seed, verbose=False)
    task = CalibrationTask(
        name.calibrator,
        stored.num_classes,
        stored.spatial_dims,
        stored.ignore_index,
        solver=solver,
        lam=lam,
        mu=mu,
        reduction=reduction,
        lr=lr,
        patience=patience,
        weight_decay=weight_decay,
    )
    stored.train_batches = task.batches
    if takes_epochs(task.solver) and not stored.ids("val"):
        raise ValueError(f"{task.solver} stops by the NLL on val, which has no cases: give it a size")
    trainer.fit(task, stored, ckpt_path=resume, weights_only=True if resume else None)
    if trainer.is_global_zero:
        folder = destination or fit_folder(outputs, name, stored.repeat)
        facts = describe(task)
        save_fit(folder, name, stored, task.calibrator, facts)
        say(name, facts, folder)
    return 0


def describe(task: CalibrationTask) -> dict[str, Any]:
    """What a finished task leaves behind, apart from its calibrator."""
    assert task.machine is not None
    certificate = task.machine.describe()
    return {
        "certificate": certificate,
        "hyperparameters": certificate["hyperparameters"],
        "val_nll": task.val_nll,
        "identity_val_nll": task.identity_nll,
        "curve": curve_rows(task.machine, task.curve),
        "trials": [],
    }
