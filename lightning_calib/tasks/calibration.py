"""The LightningModule that fits one calibrator on stored outputs."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DistributedSampler

from lightning_calib.calibrators import Calibrator, Identity, build
from lightning_calib.calibrators.base import seen_by
from lightning_calib.functional.devices import ahead
from lightning_calib.functional.penalty import Reduction
from lightning_calib.solvers import (
    AdamSolver,
    Certificate,
    EpochSolver,
    NewtonSolver,
    PassSolver,
    Solver,
    SolverName,
    choose_solver,
    make_solver,
)
from lightning_calib.solvers.base import Batch as SolverBatch
from lightning_calib.solvers.base import BatchKind
from lightning_calib.solvers.epochs import check_rates
from lightning_calib.solvers.fit import AnyBatch, batch_kind, takes_epochs, unpack
from lightning_calib.solvers.objective import EPS, LAM, MU, PooledNLL
from lightning_calib.solvers.stream import Walk
from lightning_calib.solvers.sums import LinearNLL, pooled_nll
from lightning_calib.tasks.base import Task
from lightning_calib.tasks.collective import StrategyCollective
from lightning_calib.tasks.features import ask_for_features

Batch = dict[str, Any]


class DeviceBatches:
    """Batches on a device, sent there ahead of use; a DataLoader is told each time through that it is another epoch.

    Args:
        batches: a DataLoader, or anything else that :func:`~lightning_calib.solvers.fit` takes.
        device: where to.
        walk: what the solver prepares voxels with; cases that it keeps are not sent again.
    """

    def __init__(self, batches: Iterable[AnyBatch], device: torch.device, walk: Walk | None = None) -> None:
        self.batches, self.device, self.walk, self.epoch = batches, device, walk, 0

    def __iter__(self) -> Iterator[SolverBatch]:
        """One pass."""
        sampler = getattr(self.batches, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(self.epoch)
        self.epoch += 1
        yield from ahead(map(unpack, self.batches), self.device, self._kept)

    def _kept(self, batch: SolverBatch) -> bool:
        return self.walk is not None and self.walk.keeps(batch[2])


class SolverSteps(Optimizer):
    """Makes each step of a solver one of Lightning's, which counts them for ``max_steps`` and checkpoints."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Have the solver step."""
        if closure is not None:
            closure()


class CalibrationTask(Task):
    """Fit a calibrator with ``Trainer.fit``: an epoch is a pass of its solver over the data.

    ``newton`` sums batch by batch, over processes at the end of the epoch, and moves; ``slsqp`` takes all its passes
    in one epoch; both stop the trainer when they are done. ``lbfgs`` draws a sample in every epoch and moves at its
    end, ``adam`` steps at every batch as in the paper, and its learning rate halves on plateaus; the NLL of ``val``
    stops both, and the best epoch is kept, the identity among them as epoch 0. Where there is no ``val``, they take
    all epochs and keep the last.

    Logs ``fit/objective``, ``fit/gradient_norm``, ``fit/passes``, ``fit/converged`` or ``fit/loss`` and ``fit/lr``;
    ``val/nll`` (all voxels pooled) and ``val/identity_nll``.

    Args:
        calibrator: key of ``CALIBRATORS``, or the calibrator itself, which is fitted from where it is.
        num_classes: number of classes; taken from the data on the command line, as are the next two.
        spatial_dims: 2 or 3.
        ignore_index: label of voxels that count nowhere.
        solver: ``newton``, ``slsqp``, ``lbfgs``, ``adam``, or ``auto`` for the one that suits the calibrator.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge towards the identity.
        lr: learning rate of adam.
        patience: epochs without a better ``val`` NLL after which adam stops; half of it halves the rate.
        weight_decay: l2 regularisation of lbfgs and adam.
        max_epochs: epochs of lbfgs and adam at most; by default as many as the Trainer takes.
        start: parameters to start from.
        walk: prepared voxels for newton and its NLL on ``val``, see ``KeptWalk``.
        val_every_pass: judge newton on ``val`` after every pass; otherwise at the end only.
        reduction: ``mean`` or ``sum`` of the penalty over the experts of a conditional calibrator.
        known: an earlier fit of newton on the same voxels, which need not be counted and drawn again.

    Attributes:
        machine: the solver, once a fit has begun.
        curve: epoch and NLL on ``val``.
        identity_nll: NLL on ``val`` without calibration; NaN before it is known.

    Example:
        >>> task = CalibrationTask("cms_op", num_classes=3)
        >>> task.solver, task.batches
        ('newton', 'cases')
        >>> CalibrationTask("lts", num_classes=3, solver="adam").batches
        'images'
    """

    def __init__(
        self,
        calibrator: str | Calibrator,
        num_classes: int,
        spatial_dims: int = 2,
        ignore_index: int | None = None,
        solver: SolverName = "auto",
        lam: float = LAM,
        mu: float = MU,
        eps: float = EPS,
        lr: float = 1e-2,
        patience: int = 20,
        weight_decay: float = 0.0,
        max_epochs: int | None = None,
        start: dict[str, Tensor] | None = None,
        walk: Walk | None = None,
        val_every_pass: bool = True,
        reduction: Reduction = "mean",
        known: NewtonSolver | None = None,
    ) -> None:
        super().__init__()
        check_rates(patience, weight_decay, lr)
        named = isinstance(calibrator, str)
        self.save_hyperparameters(ignore=["start", "walk", "known", *([] if named else ["calibrator"])])
        self.automatic_optimization = False
        self.calibrator = build(calibrator, num_classes, spatial_dims) if isinstance(calibrator, str) else calibrator
        if start is not None:
            self.calibrator.load_state_dict(start)
        self.ignore_index, self.val_every_pass = ignore_index, val_every_pass
        self.solver: SolverName = choose_solver(self.calibrator) if solver == "auto" else solver
        self.options: dict[str, Any] = {"lam": lam, "mu": mu, "eps": eps, "ignore_index": ignore_index, "walk": walk}
        self.options["reduction"] = reduction
        if known is not None:
            self.options["known"] = known
        if takes_epochs(self.solver):
            self.options |= {"weight_decay": weight_decay, "max_epochs": max_epochs}
        if self.solver == "adam":
            self.options |= {"lr": lr, "patience": patience}
        self.machine: Solver | None = None
        self.curve: list[tuple[int, float]] = []
        self.identity_nll = math.nan
        self._resumed: dict[str, Any] | None = None

    @property
    def batches(self) -> BatchKind:
        """What ``train_batches`` of the data module must be."""
        return batch_kind(self.calibrator, self.solver)

    @property
    def certificate(self) -> Certificate | None:
        """What is known about the fit; None until it has ended."""
        return None if self.machine is None else self.machine.certificate

    @property
    def val_nll(self) -> float:
        """NLL on ``val`` of the calibrator that came out; NaN where there is no ``val``."""
        if not self.curve:
            return math.nan
        return self.machine.best_nll if isinstance(self.machine, EpochSolver) else self.curve[-1][1]

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Calibrated log-probabilities ``(B, C, *S)`` of pooled logits ``(B, C, *S)`` and perhaps features."""
        log_probs: Tensor = self.calibrator(logits, *seen_by(self.calibrator, features))
        return log_probs

    def configure_optimizers(self) -> Optimizer:
        """Lightning's view of the solver."""
        return SolverSteps(self.calibrator.parameters())

    def setup(self, stage: str) -> None:
        """Ask for features; build the solver, refuse what it cannot fit."""
        super().setup(stage)
        ask_for_features(self, self.calibrator.feature_names)
        if stage != "fit":
            return
        if not list(self.calibrator.parameters()):
            raise ValueError(f"{self.calibrator.name} has nothing to fit: test it as it is")
        collective = StrategyCollective(self.trainer.strategy)
        self.machine = make_solver(self.calibrator, self.solver, collective=collective, **self.options)

    def on_fit_start(self) -> None:
        """Bring the solver back to where a checkpoint left it."""
        if self._resumed is not None and self.machine is not None:
            self.machine.load_state_dict(self._resumed)
            self.trainer.should_stop = self.machine.done

    def on_train_epoch_start(self) -> None:
        """A solver that reads the data itself takes all its passes at once."""
        if self.machine is not None and not isinstance(self.machine, PassSolver) and not self.machine.done:
            self.machine.solve(DeviceBatches(self.trainer.train_dataloader or [], self.device))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Give the solver a batch; newton and lbfgs move after the last one, before ``val`` sees the new point."""
        machine, last = self.machine, self.trainer.is_last_batch
        assert machine is not None
        if isinstance(machine, AdamSolver):
            self._step(lambda: machine.accumulate(*unpack(batch)))
            return
        if isinstance(machine, PassSolver):
            machine.accumulate(*unpack(batch))
        if last:
            if isinstance(machine, EpochSolver):
                self._step(machine.move)
                return
            self._step(machine.end_pass if isinstance(machine, PassSolver) else None)
            self._tell(machine)

    def on_validation_epoch_start(self) -> None:
        """Empty sums."""
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        skipped = fitting and not (self.val_every_pass or isinstance(self.machine, EpochSolver) or self.certificate)
        self._val: list[PooledNLL | LinearNLL] = []
        if not skipped:
            self._val.append(pooled_nll(self.calibrator, self.ignore_index, self.options["walk"]))
        if not skipped and math.isnan(self.identity_nll):
            self._val.append(PooledNLL(Identity(self.calibrator.num_classes), self.ignore_index))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a case to the sums."""
        for pooled in self._val:
            pooled.add(*unpack(batch))

    def on_validation_epoch_end(self) -> None:
        """NLL over all voxels of all processes."""
        if self.trainer.sanity_checking or not self._val:  # a few cases only
            return
        nll, *identity = [pooled.mean(StrategyCollective(self.trainer.strategy))[0] for pooled in self._val]
        if identity:
            (self.identity_nll,) = identity
        self._log({"val/nll": nll, "val/identity_nll": self.identity_nll})
        machine = self.machine
        if self.trainer.state.fn != TrainerFn.FITTING or machine is None:
            return
        by_epoch = self.val_every_pass or isinstance(machine, EpochSolver)
        self.curve.append((self.current_epoch + 1 if by_epoch else machine.passes, nll))
        if isinstance(machine, EpochSolver) and self.trainer.is_last_batch:
            if not machine.history:
                machine.judge_identity(self.identity_nll)
            self._end_epoch(machine, nll)

    def on_train_epoch_end(self) -> None:
        """End an epoch without validation."""
        if isinstance(self.machine, EpochSolver) and self.machine.passes <= self.current_epoch:
            self._end_epoch(self.machine, None)

    def on_train_end(self) -> None:
        """Return to the best epoch, whoever ended the fit."""
        if isinstance(self.machine, EpochSolver) and not self.machine.done:
            self.machine.finish()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what a resumed fit needs."""
        solver = None if self.machine is None else self.machine.state_dict()
        checkpoint["calibration"] = {"solver": solver, "curve": list(self.curve), "identity_nll": self.identity_nll}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it up again."""
        state = checkpoint["calibration"]
        self._resumed, self.curve, self.identity_nll = state["solver"], list(state["curve"]), state["identity_nll"]

    def _step(self, step: Callable[[], None] | None) -> None:
        """Have the solver step, and Lightning count it."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.step(step)

    def _end_epoch(self, machine: EpochSolver, val_nll: float | None) -> None:
        machine.end_pass(val_nll)
        self._tell(machine)

    def _tell(self, machine: Solver) -> None:
        """Log how far the solver is; stop where it is done."""
        self._log({f"fit/{name}": value for name, value in machine.progress().items()})
        self.trainer.should_stop = self.trainer.should_stop or machine.done

    def _log(self, values: dict[str, float]) -> None:
        """Log numbers that are the same in every process."""
        for name, value in values.items():
            self.log(name, value, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
