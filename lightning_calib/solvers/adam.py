"""Fits by Adam, as in the paper: for LTS, whose objective is not convex, and to compare others with."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_calib.calibrators import Calibrator, Identity
from lightning_calib.calibrators.base import known_finite
from lightning_calib.functional.penalty import Reduction
from lightning_calib.solvers.base import Batch, BatchKind, PassSolver, SolverName, strengths
from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.objective import EPS, LAM, MU, Regularization, mean_nll, nll_sum

MAX_EPOCHS = 300


class AdamSolver(PassSolver):
    """Adam with a learning rate that halves on plateaus, and early stopping; a pass is an epoch, a batch a step.

    The best epoch wins by the NLL of ``val``, the identity among them as epoch 0. Where :meth:`solve` gets no ``val``,
    it wins by the objective, and epoch 0 is the start as it is. With ``epochs`` nothing is judged: that many are taken
    and the last one is kept.

    Args:
        calibrator: fitted in place, also one with experts: all are trained at once.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        ignore_index: label of voxels that do not count.
        collective: the processes that share each batch.
        lr: learning rate.
        weight_decay: l2 regularisation of LTS.
        patience: epochs without a better one before the end; the learning rate halves after half as many.
        max_epochs: epochs at most; None leaves the end to whoever reads the data, who then calls :meth:`finish`.
        epochs: epochs to take without judging them.
        reduction: ``mean`` or ``sum`` of the penalty over experts.

    Attributes:
        best_nll: lowest score so far, that of epoch 0 included.
    """

    name: ClassVar[SolverName] = "adam"

    def __init__(
        self,
        calibrator: Calibrator,
        lam: float = LAM,
        mu: float = MU,
        eps: float = EPS,
        ignore_index: int | None = None,
        collective: Collective = ALONE,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        patience: int = 20,
        max_epochs: int | None = MAX_EPOCHS,
        epochs: int | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(calibrator, ignore_index, collective)
        check_rates(lr, patience, weight_decay)
        self.hyperparameters = strengths(lam, mu, eps, reduction)
        self.regularization = Regularization(calibrator, lam, mu, eps, reduction)
        self.hyperparameters |= {"lr": lr, "patience": patience, "weight_decay": weight_decay}
        self.batches = adam_batches(calibrator)
        self.patience, self.judged = patience, epochs is None
        self.max_epochs = max_epochs if epochs is None else epochs
        self.optimizer = torch.optim.Adam(calibrator.parameters(), lr=lr, weight_decay=weight_decay)
        self.plateau = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=patience // 2)
        self.history: list[float] = []  # scores of the epochs
        self.best_nll, self.best = math.inf, copied(calibrator)
        self.lowest, self.waited = math.inf, 0  # what stopping has seen: the lowest score, epochs without a lower one
        self.epoch, self.steps, self.loss = 0, 0, torch.zeros((), dtype=torch.float64)
        self.mean_loss = math.nan

    @property
    def passes(self) -> int:
        """Epochs so far."""
        return self.epoch

    @property
    def stopped(self) -> bool:
        """Whether epochs no longer get better."""
        return self.waited >= self.patience

    def accumulate(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        features: Tensor | None = None,
    ) -> None:
        """Take a step on a batch that is spread over the processes."""
        parameters = list(self.calibrator.parameters())
        # The first epoch looks at the values; later ones see them again, and no device is waited for.
        with torch.enable_grad(), nullcontext() if self.epoch == 0 else known_finite():
            total, count = nll_sum(self.calibrator, logits, target, self.ignore_index, features)
            count = self.collective.sum(count.to(total)).clamp(min=1)
            loss = total / count + self.regularization() / self.collective.size
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        self._share(parameters, gradients)
        self.optimizer.step()
        self.calibrator.project_()
        self.loss, self.steps = self.loss.to(loss.device) + loss.detach(), self.steps + 1

    def judge_identity(self, nll: float) -> None:
        """Make the identity epoch 0, with this NLL on ``val``."""
        self.best_nll, self.best = nll, copied(identity_of(self.calibrator))

    def end_pass(self, val_nll: float | None = None) -> None:
        """Score the epoch: schedule, best epoch, early stopping."""
        self._end_epoch()
        if self.judged and val_nll is not None:
            # What float32 does not show is no progress to schedule and stopping.
            self._judge(val_nll, float(torch.tensor(val_nll, dtype=torch.float32)))
            self.waited = self.waited if math.isfinite(val_nll) else self.patience
        self._finish_in_time()

    def finish(self) -> None:
        """End the fit at the best epoch; at the last one where none was judged."""
        if self.history:
            self.calibrator.load_state_dict(self.best)
        self.certificate = Certificate(
            solver="adam",
            converged=self.stopped,
            reason="no better NLL on val" if self.stopped else "the budget of epochs ended",
            passes=self.epoch,
            objective=math.nan,
            identity_objective=math.nan,
            nll=math.nan,
            gradient_norm=math.nan,
            num_voxels=0,
            hyperparameters=dict(self.hyperparameters),
            history=list(self.history),
        )

    def solve(self, batches: Iterable[Batch], val: Iterable[Batch] | None = None) -> Certificate:
        """Take epochs until they get no better, or enough of them."""
        if not self.judged:
            return super().solve(batches)
        if val is None:
            return self._solve_by_objective(batches)
        self.judge_identity(self._mean_nll(Identity(self.calibrator.num_classes), val)[0])
        while self.certificate is None:
            self._take_pass(batches)
            self.end_pass(self._mean_nll(self.calibrator, val)[0])
        return self.certificate

    def progress(self) -> dict[str, float]:
        """Mean loss of the last epoch's steps, and the learning rate."""
        return {"loss": self.mean_loss, "lr": float(self.optimizer.param_groups[0]["lr"])}

    def describe(self) -> dict[str, Any]:
        """How the fit ended; the objective is not known without another pass."""
        facts = super().describe()
        return {name: facts[name] for name in ("solver", "converged", "reason", "passes", "hyperparameters")}

    def state_dict(self) -> dict[str, Any]:
        """The state of everything that changes; a fit whose budget ended can go on with a larger one."""
        certificate = super().state_dict() if self.stopped else {"certificate": None}
        states = {"optimizer": self.optimizer.state_dict(), "plateau": self.plateau.state_dict()}
        return certificate | states | {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])
        self.plateau.load_state_dict(state["plateau"])
        vars(self).update({name: state[name] for name in _STATE})

    def _share(self, parameters: list[Parameter], gradients: tuple[Tensor | None, ...]) -> None:
        """Give the parameters the gradient of all processes together."""
        used = [pair for pair in zip(parameters, gradients, strict=True) if pair[1] is not None]
        flat = [gradient.flatten() for _, gradient in used if gradient is not None]
        if self.collective.size > 1:
            flat = list(torch.split(self.collective.sum(torch.cat(flat)), [len(part) for part in flat]))
        for (parameter, _), part in zip(used, flat, strict=True):
            parameter.grad = part.view(parameter.shape)

    def _end_epoch(self) -> None:
        self.mean_loss = float(self.collective.sum(self.loss)) / max(1, self.steps)
        self.epoch, self.steps, self.loss = self.epoch + 1, 0, torch.zeros_like(self.loss)

    def _judge(self, score: float, seen: float) -> None:
        """Take an epoch's score on record; ``seen`` is what schedule and stopping get of it."""
        self.history.append(score)
        self.plateau.step(seen)
        self.lowest, self.waited = (seen, 0) if seen < self.lowest else (self.lowest, self.waited + 1)
        if score < self.best_nll:
            self.best_nll, self.best = score, copied(self.calibrator)

    def _finish_in_time(self) -> None:
        if self.stopped or (self.max_epochs is not None and self.epoch >= self.max_epochs):
            self.finish()

    def _mean_nll(self, calibrator: Calibrator, batches: Iterable[Batch]) -> tuple[float, int]:
        return mean_nll(calibrator, batches, self.ignore_index, self.collective)

    def _objective(self, batches: Iterable[Batch]) -> tuple[float, float, int]:
        """Objective, mean NLL and number of the voxels that are fitted on."""
        nll, count = self._mean_nll(self.calibrator, batches)
        return nll + float(self.regularization().detach()), nll, count

    def _solve_by_objective(self, batches: Iterable[Batch]) -> Certificate:
        """The same without ``val``; the certificate is complete."""
        identity, _ = self._mean_nll(Identity(self.calibrator.num_classes), batches)
        self.best_nll = self.lowest = self._objective(batches)[0]
        self.history.append(self.best_nll)
        while self.certificate is None:
            self._take_pass(batches)
            self._end_epoch()
            score = self._objective(batches)[0]
            if not math.isfinite(score):
                remedy = f"lower the learning rate {self.hyperparameters['lr']}"
                raise ConvergenceError(f"the objective is {score} after epoch {self.epoch}; {remedy}")
            self._judge(score, score)
            self._finish_in_time()
        objective, nll, count = self._objective(batches)
        self.certificate = dataclasses.replace(
            self.certificate,
            reason="early stopping" if self.stopped else "budget",
            objective=objective,
            identity_objective=identity,
            nll=nll,
            num_voxels=count,
        )
        return self.certificate


_STATE = ("history", "best_nll", "best", "lowest", "waited", "epoch", "mean_loss")


def check_rates(lr: float, patience: int, weight_decay: float) -> None:
    """Refuse what adam cannot work with."""
    if patience < 1 or lr <= 0 or weight_decay < 0:
        raise ValueError(f"lr = {lr}, patience = {patience}, weight_decay = {weight_decay}: out of range")


def adam_batches(calibrator: Calibrator) -> BatchKind:
    """What a step is taken on: random voxels, or images where neighbours matter."""
    return "voxels" if calibrator.looks_at == "voxel" else "images"


def copied(calibrator: Calibrator) -> dict[str, Tensor]:
    """Parameters of a calibrator as they are now."""
    return {name: value.detach().clone() for name, value in calibrator.state_dict().items()}


def identity_of(calibrator: Calibrator) -> Calibrator:
    """A calibrator of the same kind that changes nothing; what starts at random is drawn from a seed of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return type(calibrator)(calibrator.num_classes, calibrator.spatial_dims, **calibrator.options())
