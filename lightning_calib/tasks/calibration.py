"""The LightningModule that fits and tests one calibrator on stored outputs."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_calib.calibrators import AffineCalibrator, Calibrator, Identity, build
from lightning_calib.metrics import score_collection
from lightning_calib.solvers import Certificate, NewtonSolver, nll_sum, regularization
from lightning_calib.solvers.fit import Solver, choose_solver, fit
from lightning_calib.solvers.objective import EPS, LAM, MU
from lightning_calib.tasks.selection import Selection

Batch = dict[str, Any]
MAX_EPOCHS = 300


class LoaderBatches:
    """Batches of a DataLoader on a device, as solvers take them."""

    def __init__(self, loader: Iterable[Batch], device: torch.device) -> None:
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
        """One pass."""
        for batch in self.loader:
            yield batch["logits"].to(self.device), batch["target"].to(self.device), batch["case_id"]


class CalibrationTask(LightningModule):
    """Fit a calibrator with ``Trainer.fit``, judge it with ``Trainer.test``.

    Full-batch solvers (``newton``, ``slsqp``) take one pass over the data an epoch: sums are taken batch by batch,
    added over processes at the end of the epoch, and the solver moves; it stops the trainer when it is done.
    ``adam`` is ordinary gradient descent as in the paper: ``ReduceLROnPlateau`` and early stopping on the NLL of
    ``val``, of which the best epoch is kept. The identity is its epoch 0.

    Logs ``fit/objective``, ``fit/gradient_norm``, ``fit/passes``, ``fit/converged`` or ``fit/loss``; ``val/nll``
    (all voxels pooled) and ``val/identity_nll``; ``test/<score>`` for every score.

    Args:
        calibrator: key of ``CALIBRATORS``, or the calibrator itself, which is fitted from where it is.
        num_classes: number of classes; taken from the data on the command line, as are the next three.
        spatial_dims: 2 or 3.
        ignore_index: label of voxels that count nowhere.
        background: class that Dice leaves out; null to average over all classes.
        solver: ``newton``, ``slsqp``, ``adam``, or ``auto`` for the one that suits the calibrator.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge towards the identity.
        lr: learning rate of adam.
        patience: epochs without a better ``val`` NLL after which adam stops; half of it halves the rate.
        weight_decay: adam's weight decay, for local temperature scaling.

    Example:
        >>> task = CalibrationTask("cms_op", num_classes=3)
        >>> task.solver, task.batches
        ('newton', 'cases')
        >>> CalibrationTask("lts", num_classes=3).batches
        'images'
    """

    def __init__(
        self,
        calibrator: str | Calibrator,
        num_classes: int,
        spatial_dims: int = 2,
        ignore_index: int | None = None,
        background: int | None = None,
        solver: Solver = "auto",
        lam: float = LAM,
        mu: float = MU,
        eps: float = EPS,
        lr: float = 1e-2,
        patience: int = 20,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        if patience < 1 or lr <= 0 or weight_decay < 0:
            raise ValueError(f"lr = {lr}, patience = {patience}, weight_decay = {weight_decay}: out of range")
        named = isinstance(calibrator, str)
        self.save_hyperparameters(ignore=[] if named else ["calibrator"])
        self.calibrator = build(calibrator, num_classes, spatial_dims) if isinstance(calibrator, str) else calibrator
        self.ignore_index = ignore_index
        self.solver: Solver = choose_solver(self.calibrator) if solver == "auto" else solver
        self.strengths = {"lam": lam, "mu": mu, "eps": eps}
        self.lr, self.patience, self.weight_decay = lr, patience, weight_decay
        self.automatic_optimization = self.solver == "adam"
        self.newton: NewtonSolver | None = None
        self.certificate: Certificate | None = None
        self.selection = Selection()
        self._resumed: dict[str, Any] | None = None
        self.configure_metrics(background)

    def configure_metrics(self, background: int | None) -> None:
        """Scores of the test set."""
        self.scores = score_collection(self.ignore_index, background)

    @property
    def batches(self) -> Literal["cases", "voxels", "images"]:
        """What ``train_batches`` of the data module must be."""
        if self.solver != "adam":
            return "cases"
        return "images" if self.calibrator.looks_at == "neighbourhood" else "voxels"

    def describe(self) -> dict[str, Any]:
        """The certificate as plain types; for adam, how it ended."""
        if self.certificate is not None:
            return self.certificate.to_dict()
        stopped = self.trainer.should_stop
        return {
            "solver": self.solver,
            "converged": stopped,
            "reason": "no better NLL on val" if stopped else "the budget of epochs ended",
            "passes": len(self.selection.curve),
            "hyperparameters": {**self.strengths, "lr": self.lr, "patience": self.patience},
        }

    def forward(self, logits: Tensor) -> Tensor:
        """Calibrated log-probabilities ``(B, C, *S)`` of pooled logits ``(B, C, *S)``."""
        log_probs: Tensor = self.calibrator(logits)
        return log_probs

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam and its schedule; full-batch solvers need no optimiser."""
        if self.solver != "adam":
            return []
        optimizer = Adam(self.calibrator.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        if not self.trainer.enable_validation:
            return optimizer
        schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=self.patience // 2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val/nll"}}

    def configure_callbacks(self) -> list[Callback]:
        """Early stopping for adam."""
        stops = self.solver == "adam" and self.trainer.enable_validation
        return [EarlyStopping("val/nll", patience=self.patience)] if stops else []

    def setup(self, stage: str) -> None:
        """Refuse what the solver cannot fit, before anything is set up for it."""
        if stage == "fit" and not list(self.calibrator.parameters()):
            raise ValueError(f"{self.calibrator.name} has nothing to fit: test it as it is")
        if stage == "fit" and self.solver not in ("adam", choose_solver(self.calibrator)):
            raise ValueError(f"{self.solver} cannot fit {self.calibrator.name}; leave the solver at auto, or use adam")

    def on_fit_start(self) -> None:
        """Build newton's machine, or bring it back to where a checkpoint left it."""
        if self.solver != "newton":
            return
        assert isinstance(self.calibrator, AffineCalibrator)  # setup has made sure
        lam, mu, eps = self.strengths.values()
        self.newton = NewtonSolver(self.calibrator, lam, mu, eps, self.ignore_index)
        if self._resumed is not None:
            self.newton.load_state_dict(self._resumed)
            self.certificate = self.newton.certificate
            self.trainer.should_stop = self.newton.done

    def on_train_epoch_start(self) -> None:
        """SLSQP decides itself when to read the data: it takes all its passes at once."""
        if self.solver == "slsqp":
            self.certificate = fit(
                self.calibrator,
                LoaderBatches(self.trainer.train_dataloader or [], self.device),
                ignore_index=self.ignore_index,
                solver="slsqp",
                reduce=self._sum,
            )
            self._log({"fit/objective": self.certificate.objective, "fit/passes": float(self.certificate.passes)})

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Adam's loss, or one more batch in the sums of newton's pass."""
        if self.solver == "adam":
            return self._loss(batch)
        if self.newton is not None:
            self.newton.accumulate(batch["logits"], batch["target"], batch["case_id"])
            if self.trainer.is_last_batch:  # before validation, which is to see the new point
                self._end_pass(self.newton)
        if self.certificate is not None:
            self.trainer.should_stop = self.trainer.is_last_batch
        return None

    def _end_pass(self, newton: NewtonSolver) -> None:
        newton.step(reduce=self._sum)
        facts = {"objective": newton.objective, "gradient_norm": newton.gradient_norm}
        if newton.certificate is not None:
            self.certificate = newton.certificate
            facts |= {"passes": newton.passes, "converged": newton.certificate.converged}
        self._log({f"fit/{name}": float(value) for name, value in facts.items()})

    def _loss(self, batch: Batch) -> Tensor:
        """Objective of a batch that is spread over processes; averaging over them gives the right gradient."""
        total, count = nll_sum(self.calibrator, batch["logits"], batch["target"], self.ignore_index)
        count = self._sum(count.to(total)).clamp(min=1)
        loss = total * self.trainer.world_size / count + regularization(self.calibrator, **self.strengths)
        self.log("fit/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        return loss

    def optimizer_step(self, *args: Any, **options: Any) -> None:
        """Step, then bring parameters back into their bounds."""
        super().optimizer_step(*args, **options)
        self.calibrator.project_()

    def on_validation_epoch_start(self) -> None:
        """Empty sums: NLL of the calibrator, NLL of the identity, voxels."""
        self._val = torch.zeros(3, dtype=torch.float64)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a case to the sums."""
        logits, target = batch["logits"], batch["target"]
        total, count = nll_sum(self.calibrator, logits, target, self.ignore_index)
        identity = torch.zeros_like(total)
        if math.isnan(self.selection.identity_nll):
            identity, _ = nll_sum(Identity(self.calibrator.num_classes), logits, target, self.ignore_index)
        self._val += torch.stack([total, identity, count.to(total)]).double().cpu()

    def on_validation_epoch_end(self) -> None:
        """NLL over all voxels of all processes."""
        total, identity, count = self._sum(self._val).tolist()
        if self.trainer.sanity_checking:  # a few cases only
            return
        if math.isnan(self.selection.identity_nll):
            self.selection.identity_nll = identity / count
        self._log({"val/nll": total / count, "val/identity_nll": self.selection.identity_nll})
        if self.trainer.state.fn == TrainerFn.FITTING:
            self.selection.add(self.current_epoch + 1, total / count, self.calibrator)

    def on_train_end(self) -> None:
        """Adam returns the best epoch."""
        if self.solver == "adam" and self.selection.curve:
            self.selection.restore(self.calibrator)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a case to all scores."""
        logits, target, case_ids = batch["logits"], batch["target"], batch["case_id"]
        self.scores.update(self(logits), target, case_ids=case_ids, reference=logits, distance=batch.get("distance"))

    def on_test_epoch_end(self) -> None:
        """Log every score over all processes."""
        self._log({f"test/{name}": float(value) for name, value in self.scores.compute().items()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what a resumed fit needs."""
        newton = None if self.newton is None else self.newton.state_dict()
        checkpoint["calibration"] = {"newton": newton, "selection": self.selection.state_dict()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it up again."""
        state = checkpoint["calibration"]
        self._resumed = state["newton"]
        self.selection.load_state_dict(state["selection"])

    def _sum(self, values: Tensor) -> Tensor:
        """Sum over processes."""
        summed: Tensor = self.trainer.strategy.reduce(values.to(self.device), reduce_op="sum")
        return summed.to(values.device)

    def _log(self, values: dict[str, float]) -> None:
        """Log numbers that are the same in every process."""
        for name, value in values.items():
            self.log(name, value, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
