"""Fits of one pipeline on one repeat, by whichever solver, judged on ``val``: without a Trainer, or under one."""

from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import Trainer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lightning_calib.calibrators import Calibrator, Identity, LinearCalibrator, PipelineName, build
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.experiment.search.sampled import (
    SampledTrials,
    SampledVoxels,
    SearchOn,
    informed,
    on_coreset,
    takes_coreset,
)
from lightning_calib.experiment.search.space import Space, Values
from lightning_calib.functional.devices import device_of
from lightning_calib.kit.tensors import write_tensors
from lightning_calib.outputs.stored import Part, StoredOutputsDataModule
from lightning_calib.solvers import (
    ConvergenceError,
    EpochSolver,
    NewtonSolver,
    Solver,
    SolverName,
    TorchCollective,
    choose_solver,
    make_solver,
    mean_nll,
)
from lightning_calib.solvers.coreset import Coreset, Lacking, draw, look
from lightning_calib.solvers.epochs import MAX_EPOCHS
from lightning_calib.solvers.fit import takes_epochs
from lightning_calib.solvers.stream import KeptWalk
from lightning_calib.solvers.sums import pooled_nll
from lightning_calib.tasks.calibration import CalibrationTask, DeviceBatches

START = "start.safetensors"
PARTS: tuple[Part, ...] = ("cal", "val")

# Gradient over all voxels at which the search for the start of trials on a coreset ends.
NEAR = 1e-4


@dataclass(frozen=True)
class Fitted:
    """A fit and what it is worth.

    Attributes:
        state: parameters of the calibrator.
        val_nll: NLL over all voxels of ``val``.
        certificate: what the solver says about it.
        curve: objective after each pass, NLL of ``val`` where it was taken.
        values: hyperparameters.
    """

    state: dict[str, Tensor]
    val_nll: float
    certificate: dict[str, Any]
    curve: list[CurveRow]
    values: Values = field(default_factory=dict)


class PipelineFitter:
    """Fits of one pipeline; each depends on its hyperparameters and the seed only, not on the ones before.

    Where there is something to search, full-batch fits start at the optimum for the default strengths, which is found
    once: the way from there to the optimum of other strengths is short. The voxels are prepared once, too. Where the
    data are large, trials see a coreset, and the fit of chosen strengths on all voxels starts where its trial ended.

    Args:
        name: the pipeline.
        data: its cases; pooled as the pipeline needs from now on.
        solver: ``newton``, ``slsqp``, ``lbfgs``, ``adam`` or ``auto``.
        seed: seed of what adam draws at random.
        accelerator: where fits run, in Lightning's words.
        max_epochs: most epochs of lbfgs and adam.
        folder: where processes that share a search keep the common start; None for none.
        search: whether trials may see a coreset of large data, or always all voxels.

    Attributes:
        sampled: whether they see one.
        space: what is searched.
        start: parameters that full-batch fits start from, once there was one; None for the identity.
    """

    def __init__(
        self,
        name: PipelineName | str,
        data: StoredOutputsDataModule,
        solver: SolverName = "auto",
        seed: int = 0,
        accelerator: str = "auto",
        max_epochs: int = MAX_EPOCHS,
        folder: Path | None = None,
        search: SearchOn = "coreset",
    ) -> None:
        if not data.ids("val"):
            raise ValueError("val has no cases: hyperparameters are chosen on it; give it a size")
        self.name = PipelineName.parse(name) if isinstance(name, str) else name
        data.pooling = self.name.pooling
        self.data, self.seed, self.accelerator, self.max_epochs, self.folder = (
            data,
            seed,
            accelerator,
            max_epochs,
            folder,
        )
        data.feature_names = self.fresh().feature_names
        self.device = device_of(accelerator)
        self.solver: SolverName = choose_solver(self.fresh()) if solver == "auto" else solver
        self.space = Space.of(self.fresh(), self.solver)
        voxels = sum(prod(data.store[case].record.shape) for case in data.ids("cal"))
        self.sampled = takes_coreset(search, voxels, self.fresh, solver)
        self.trials: SampledTrials | None = None
        self.start: dict[str, Tensor] | None = None
        self.known: NewtonSolver | None = None  # counts and sample at the start, made once
        self.walk = self._kept(self.fresh().to(self.device))

    def fresh(self) -> Calibrator:
        """A calibrator at the identity."""
        return fresh(self.name, self.data, self.seed)

    @property
    def has_parameters(self) -> bool:
        """Whether there is anything to fit."""
        return bool(list(self.fresh().parameters()))

    def identity_nll(self) -> float:
        """NLL of ``val`` without calibration."""
        return mean_nll(Identity(self.data.num_classes), self._val(), self.data.ignore_index)[0]

    def trial(self, values: Values) -> Fitted:
        """What a search sees of some hyperparameters: on a coreset where the data are large, and then an estimate."""
        if not self.sampled:
            return self(values)
        solver, nll = self._sampled()(values)
        state = solver.calibrator.cpu().state_dict()
        return Fitted(state, nll, solver.describe(), curve_rows(solver, [(solver.passes, nll)]), dict(values))

    def exact_nll(self, fitted: Fitted) -> float:
        """NLL over all voxels of ``val``."""
        return self._val_nll(self.restored(fitted).to(self.device))

    def __call__(self, values: Values) -> Fitted:
        """Fit with the given hyperparameters on all voxels; the others keep their defaults."""
        calibrator = self.fresh()
        if self.warm:
            calibrator.load_state_dict(self._start_of(values))
        solver = self._solve(calibrator.to(self.device), values, self._known())
        if isinstance(solver, EpochSolver):
            nll, val = solver.best_nll, list(enumerate(solver.history, start=1))
        else:
            nll = self._val_nll(calibrator)
            val = [(solver.passes, nll)]
        return Fitted(calibrator.cpu().state_dict(), nll, solver.describe(), curve_rows(solver, val), dict(values))

    def under(self, trainer: Trainer, values: Values) -> CalibrationTask:
        """The fit of ``values`` once more under a Trainer, from the same start with the same voxels: the same bits.

        Args:
            trainer: a new one, with room for the epochs of the fit.
            values: hyperparameters that were tried.
        """
        same_place = trainer.world_size == 1 and trainer.strategy.root_device == self.device
        task = CalibrationTask(
            self.fresh(),
            self.data.num_classes,
            self.data.spatial_dims,
            self.data.ignore_index,
            solver=self.solver,
            max_epochs=self.max_epochs,
            start=self._start_of(values) if self.warm else None,
            walk=self.walk if same_place else self._kept(self.fresh()),
            known=self._known() if same_place else None,
            val_every_pass=False,
            **values,  # type: ignore[arg-type]  # floats and integers as the space draws them
        )
        self.data.train_batches = task.batches
        trainer.fit(task, self.data)
        machine = None if trainer.world_size > 1 else task.machine
        cut = isinstance(machine, EpochSolver) and not machine.stopped and machine.passes < self.max_epochs
        spawned = machine is None  # the fit was in other processes, which leave their results in files
        if not spawned and (task.certificate is None or cut):
            raise ValueError(
                f"the Trainer ended the fit of {self.name} after {trainer.current_epoch} epochs; leave it "
                f"{max(self.max_epochs, MAX_EPOCHS)} (max_epochs)"
            )
        return task

    def restored(self, fitted: Fitted) -> Calibrator:
        """The calibrator of a fit."""
        calibrator = self.fresh()
        calibrator.load_state_dict(fitted.state)
        return calibrator

    @property
    def warm(self) -> bool:
        """Whether fits start at the optimum for the defaults, because there are several."""
        return bool(self.space.names) and not takes_epochs(self.solver)

    def _start_of(self, values: Values) -> dict[str, Tensor]:
        """Where the fit of ``values`` on all voxels starts."""
        return self.trial(values).state if self.sampled else self._warm_start()

    def _sampled(self) -> SampledTrials:
        """Trials on coresets, which are drawn once."""
        if self.trials is None:
            found = SampledVoxels.read(self.folder)
            if found is None:
                found = self._draw()
                if self.folder is not None:
                    found.write(self.folder)
            self.start, self.trials = found.start, SampledTrials(self._linear, found)
        return self.trials

    def _draw(self) -> SampledVoxels:
        """Draw the coresets; find the optimum for the default strengths there, and what they lack at it."""
        cal, val = (draw(self.data.batches(part), self.data.num_classes, self.data.ignore_index) for part in PARTS)
        calibrator, own, judging = self._linear(), KeptWalk(self._linear()), KeptWalk(self._linear())
        known = informed(on_coreset(calibrator, cal, own), cal)
        with suppress(ConvergenceError):  # the fit on all voxels decides
            on_coreset(calibrator, cal, own, known=known).solve([cal.batch])
        counts = self._look(calibrator, "cal", cal, own).counts
        with suppress(ConvergenceError):
            self._solve(calibrator, {}, NewtonSolver(self._linear()).told(counts, known.samples), tolerance=NEAR)
        lacking = self._look(calibrator, "cal", cal, own).slope
        judged = self._look(calibrator, "val", val, judging)
        start = calibrator.cpu().state_dict()
        return SampledVoxels(cal, val, start, counts, lacking, judged.loss, judged.slope)

    def _look(self, calibrator: LinearCalibrator, part: Part, coreset: Coreset, own: KeptWalk) -> Lacking:
        """What a coreset lacks where the calibrator is."""
        assert self.walk is not None
        batches = DeviceBatches(self.data.batches(part), self.device, self.walk)
        return look(calibrator, self.walk, batches, coreset, own)

    def _linear(self) -> LinearCalibrator:
        """A calibrator at the identity where fits run."""
        calibrator = self.fresh().to(self.device)
        assert isinstance(calibrator, LinearCalibrator)
        return calibrator

    def _warm_start(self) -> dict[str, Tensor]:
        if self.start is None:
            self.start = self._kept_start()
        if self.start is None:
            self.start = self._solve(self.fresh().to(self.device), {}).calibrator.cpu().state_dict()
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_tensors(self.folder / START, self.start)
        return self.start

    def _kept_start(self) -> dict[str, Tensor] | None:
        """The start that another process has found; None where there is none, or a damaged file."""
        try:
            return None if self.folder is None else load_file(self.folder / START)
        except (OSError, SafetensorError):
            return None

    def _known(self) -> NewtonSolver | None:
        """Counts and sample at the common start of all fits."""
        calibrator = self.fresh()
        if self.sampled and self.known is None:
            self.known = self._sampled().all_known(NewtonSolver(self._linear(), walk=self.walk))
        if self.known is None and self.warm and self.walk is not None and isinstance(calibrator, LinearCalibrator):
            calibrator.load_state_dict(self._warm_start())
            looking = NewtonSolver(calibrator.to(self.device), ignore_index=self.data.ignore_index, walk=self.walk)
            self.known = looking.learn(DeviceBatches(self.data.batches("cal"), self.device, self.walk))
        return self.known

    def _solve(
        self, calibrator: Calibrator, values: Values, known: NewtonSolver | None = None, **options: Any
    ) -> Solver:
        """The epochs that ``CalibrationTask`` takes, without the cost of a Trainer for every trial."""
        options |= dict(values) | ({"max_epochs": self.max_epochs} if takes_epochs(self.solver) else {})
        options |= {"ignore_index": self.data.ignore_index, "walk": self.walk}
        if known is not None:
            options["known"] = known
        if self.solver == "adam" and dist.is_available() and dist.is_initialized():  # its batches come in shares
            options["collective"] = TorchCollective(device=self.device)
        solver = make_solver(calibrator, self.solver, **options)
        self.data.train_batches = solver.batches
        cal = self.data.batches("cal") if solver.batches == "cases" else self.data.train_dataloader()
        solver.solve(DeviceBatches(cal, self.device, self.walk), self._val())
        return solver

    def _val_nll(self, calibrator: Calibrator) -> float:
        pooled = pooled_nll(calibrator, self.data.ignore_index, self.walk)
        for batch in DeviceBatches(self.data.batches("val"), self.device, self.walk):
            pooled.add(*batch)
        return pooled.mean()[0]

    def _val(self) -> DeviceBatches:
        return DeviceBatches(self.data.batches("val"), self.device)

    def _kept(self, calibrator: Calibrator) -> KeptWalk | None:
        """Prepared voxels, where the solver is one for which they can be prepared."""
        if self.solver == "newton" and isinstance(calibrator, LinearCalibrator):
            return KeptWalk(calibrator, self.data.ignore_index)
        return None


def fresh(name: PipelineName, data: StoredOutputsDataModule, seed: int) -> Calibrator:
    """A calibrator of a pipeline at the identity; the gates of local temperature scaling start at random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(name.calibrator, data.num_classes, data.spatial_dims)


def curve_rows(solver: Solver, val: list[tuple[int, float]]) -> list[CurveRow]:
    """The recorded course of a fit: the objective after each pass of a full-batch solver, epochs and NLL of ``val``."""
    full_batch = solver.certificate is not None and not isinstance(solver, EpochSolver)
    history = solver.describe()["history"] if full_batch else []
    rows = [CurveRow(step, "objective", value) for step, value in enumerate(history, start=1)]
    return rows + [CurveRow(epoch, "val_nll", nll) for epoch, nll in val]


def fit_again(
    calibrator: Calibrator, data: StoredOutputsDataModule, solver: SolverName, options: dict[str, Any]
) -> dict[str, Any]:
    """Fit in place on all cases of ``cal`` with hyperparameters that are known; what the solver says about it."""
    device = device_of("auto")
    machine = make_solver(calibrator.to(device), solver, ignore_index=data.ignore_index, **options)
    data.train_batches = machine.batches
    machine.solve(DeviceBatches(data.train_dataloader(), device))
    calibrator.cpu()
    return {"solver": solver, "passes": machine.passes} if isinstance(machine, EpochSolver) else machine.describe()
