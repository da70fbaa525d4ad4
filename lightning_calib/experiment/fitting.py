"""One fit of one pipeline on one repeat, by whichever solver, judged on ``val``."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning import Trainer
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator, Calibrator, Identity, PipelineName, build
from lightning_calib.experiment.kept import KeptWalk, affine_nll
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.experiment.space import Values
from lightning_calib.outputs.stored import Part, StoredOutputsDataModule
from lightning_calib.solvers import Certificate, NewtonSolver
from lightning_calib.solvers.adam import mean_nll
from lightning_calib.solvers.fit import Solver, choose_solver, fit
from lightning_calib.solvers.newton import run_newton
from lightning_calib.tasks.calibration import MAX_EPOCHS, CalibrationTask


@dataclass(frozen=True)
class Fitted:
    """A fit and what it is worth.

    Attributes:
        state: parameters of the calibrator.
        val_nll: NLL over all voxels of ``val``.
        certificate: what the solver says about it.
        curve: objective after each pass, NLL of ``val`` where it was taken.
    """

    state: dict[str, Tensor]
    val_nll: float
    certificate: dict[str, Any]
    curve: list[CurveRow]


def pooled_nll(calibrator: Calibrator, data: StoredOutputsDataModule, part: Part = "val") -> float:
    """NLL over all voxels of a part together.

    Args:
        calibrator: takes the logits as ``data`` pools them.
        data: the cases.
        part: which of them.
    """
    return mean_nll(calibrator, data.batches(part), data.ignore_index)[0]


class PipelineFitter:
    """Fits of one pipeline; each depends on its hyperparameters and the seed only, not on the ones before.

    Full-batch fits start at the optimum for the default strengths, which is found once: the way from there to the
    optimum of other strengths is short.

    Args:
        name: the pipeline.
        data: its cases; pooled as the pipeline needs from now on.
        solver: ``newton``, ``slsqp``, ``adam`` or ``auto``.
        seed: seed of what adam draws at random.
        accelerator: where adam runs.
        max_epochs: most epochs of adam.
    """

    def __init__(
        self,
        name: PipelineName,
        data: StoredOutputsDataModule,
        solver: Solver = "auto",
        seed: int = 0,
        accelerator: str = "auto",
        max_epochs: int = MAX_EPOCHS,
    ) -> None:
        if not data.ids("val"):
            raise ValueError("val has no cases: hyperparameters are chosen on it; give it a size")
        data.pooling = name.pooling
        self.name, self.data, self.seed = name, data, seed
        self.solver: Solver = choose_solver(self.fresh()) if solver == "auto" else solver
        self.trainer_options: dict[str, Any] = {"accelerator": accelerator, "max_epochs": max_epochs}
        self.start: dict[str, Tensor] | None = None
        self._walk: KeptWalk | None = None

    def fresh(self) -> Calibrator:
        """A calibrator at the identity."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)  # the gates of local temperature scaling start at random
            return build(self.name.calibrator, self.data.num_classes, self.data.spatial_dims)

    def identity_nll(self) -> float:
        """NLL of ``val`` without calibration."""
        return pooled_nll(Identity(self.data.num_classes), self.data)

    def __call__(self, values: Values, warm: bool = False) -> Fitted:
        """Fit with the given hyperparameters.

        Args:
            values: hyperparameters; the others keep their defaults.
            warm: start full-batch fits at the optimum for the defaults, because there are more to come.
        """
        if self.solver == "adam":
            return self._descend(values)
        calibrator = self.fresh()
        if warm:
            calibrator.load_state_dict(self._warm_start())
        certificate = self._solve(calibrator, values)
        nll = self._val_nll(calibrator)
        curve = [CurveRow(step, "objective", value) for step, value in enumerate(certificate.history, start=1)]
        curve.append(CurveRow(certificate.passes, "val_nll", nll))
        return Fitted(calibrator.state_dict(), nll, certificate.to_dict(), curve)

    def restored(self, fitted: Fitted) -> Calibrator:
        """The calibrator of a fit."""
        calibrator = self.fresh()
        calibrator.load_state_dict(fitted.state)
        return calibrator

    def _warm_start(self) -> dict[str, Tensor]:
        if self.start is None:
            calibrator = self.fresh()
            self._solve(calibrator, {})
            self.start = calibrator.state_dict()
        return self.start

    def _solve(self, calibrator: Calibrator, values: Values) -> Certificate:
        """The passes that ``CalibrationTask`` takes as epochs, without the cost of a Trainer for every trial."""
        batches, ignore_index = self.data.batches("cal"), self.data.ignore_index
        if self.solver == "newton" and isinstance(calibrator, AffineCalibrator):
            solver = NewtonSolver(calibrator, ignore_index=ignore_index, **values)  # type: ignore[arg-type]
            solver.walk = self.walk(calibrator)
            return run_newton(solver, batches)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the certificate holds them
            return fit(calibrator, batches, ignore_index=ignore_index, solver=self.solver)

    def _val_nll(self, calibrator: Calibrator) -> float:
        if isinstance(calibrator, AffineCalibrator):
            return affine_nll(calibrator, self.data.batches("val"), self.walk(calibrator))
        return pooled_nll(calibrator, self.data)

    def walk(self, calibrator: AffineCalibrator) -> KeptWalk:
        """Prepared voxels, for all fits."""
        if self._walk is None:
            self._walk = KeptWalk(calibrator, self.data.ignore_index)
        return self._walk

    def _descend(self, values: Values) -> Fitted:
        """Adam, by Lightning."""
        task = CalibrationTask(
            self.fresh(),
            self.data.num_classes,
            self.data.spatial_dims,
            self.data.ignore_index,
            solver="adam",
            **values,  # type: ignore[arg-type]  # floats and integers as the space draws them
        )
        self.data.train_batches = task.batches
        quiet_trainer(**self.trainer_options).fit(task, self.data)
        return Fitted(task.calibrator.state_dict(), task.selection.best_nll, task.describe(), curve_rows(task))


def curve_rows(task: CalibrationTask) -> list[CurveRow]:
    """The recorded course of a task's fit."""
    history = [] if task.certificate is None else task.certificate.history
    rows = [CurveRow(step, "objective", value) for step, value in enumerate(history, start=1)]
    return rows + [CurveRow(int(point["epoch"]), "val_nll", point["val_nll"]) for point in task.selection.curve]


def quiet_trainer(**options: Any) -> Trainer:
    """A Trainer of one device that leaves no files and prints nothing."""
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(**{"devices": 1, "num_sanity_val_steps": 0, **silent, **options})
