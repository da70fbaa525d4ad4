"""Fits that may end anywhere: epochs are judged, and the best one wins."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_calib.calibrators import Calibrator, Identity
from lightning_calib.functional.penalty import Reduction
from lightning_calib.solvers.base import Batch, PassSolver, strengths
from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.objective import EPS, LAM, MU, Regularization, mean_nll

MAX_EPOCHS = 300


class EpochSolver(PassSolver):
    """A pass is an epoch; the best epoch wins by the NLL of ``val``, the identity among them as epoch 0.

    Where :meth:`solve` gets no ``val``, it wins by the objective, and epoch 0 is the start as it is. With ``epochs``
    nothing is judged: that many are taken and the last one is kept.

    Args:
        calibrator: fitted in place, also one with experts: all are trained at once.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        ignore_index: label of voxels that do not count.
        collective: the processes that share the data.
        weight_decay: l2 regularisation.
        patience: epochs without a better one before the end.
        max_epochs: epochs at most; None leaves the end to whoever reads the data, who then calls :meth:`finish`.
        epochs: epochs to take without judging them.
        reduction: ``mean`` or ``sum`` of the penalty over experts.

    Attributes:
        best_nll: lowest score so far, that of epoch 0 included.
    """

    # What ends a fit before its budget does.
    usual_end: ClassVar[str] = "no better NLL on val"

    def __init__(
        self,
        calibrator: Calibrator,
        lam: float = LAM,
        mu: float = MU,
        eps: float = EPS,
        ignore_index: int | None = None,
        collective: Collective = ALONE,
        weight_decay: float = 0.0,
        patience: int = 20,
        max_epochs: int | None = MAX_EPOCHS,
        epochs: int | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(calibrator, ignore_index, collective)
        self.hyperparameters = strengths(lam, mu, eps, reduction)
        self.regularization = Regularization(calibrator, lam, mu, eps, reduction)
        self.patience, self.weight_decay, self.judged = patience, weight_decay, epochs is None
        self.max_epochs = max_epochs if epochs is None else epochs
        self.history: list[float] = []  # scores of the epochs
        self.best_nll, self.best = math.inf, copied(calibrator)
        self.lowest, self.waited = math.inf, 0  # what stopping has seen: the lowest score, epochs without a lower one
        self.epoch = 0

    @property
    def passes(self) -> int:
        """Epochs so far."""
        return self.epoch

    @property
    def stopped(self) -> bool:
        """Whether epochs no longer get better."""
        return self.waited >= self.patience

    def move(self) -> None:
        """Do what is left once all batches of an epoch came, in all processes at once, before ``val`` is judged."""

    def judge_identity(self, nll: float) -> None:
        """Make the identity epoch 0, with this NLL on ``val``."""
        self.best_nll, self.best = nll, copied(identity_of(self.calibrator))

    def end_pass(self, val_nll: float | None = None) -> None:
        """Score the epoch: best epoch, early stopping."""
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
            solver=self.name,
            converged=self.stopped,
            reason=self.usual_end if self.stopped else "the budget of epochs ended",
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

    def describe(self) -> dict[str, Any]:
        """How the fit ended; the objective is not known without another pass."""
        facts = super().describe()
        return {name: facts[name] for name in ("solver", "converged", "reason", "passes", "hyperparameters")}

    def state_dict(self) -> dict[str, Any]:
        """The state of everything that changes; a fit whose budget ended can go on with a larger one."""
        certificate = super().state_dict() if self.stopped else {"certificate": None}
        return certificate | {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        vars(self).update({name: state[name] for name in _STATE})

    def _take_pass(self, batches: Iterable[Batch]) -> None:
        super()._take_pass(batches)
        self.move()

    def _end_epoch(self) -> None:
        self.epoch += 1

    def _judge(self, score: float, seen: float) -> None:
        """Take an epoch's score on record; ``seen`` is what stopping gets of it."""
        self.history.append(score)
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
                raise ConvergenceError(f"the objective is {score} after epoch {self.epoch}; {self._remedy()}")
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

    def _remedy(self) -> str:
        """What to do about an objective that is not a number."""
        return "look for NaN in the logits"


_STATE = ("history", "best_nll", "best", "lowest", "waited", "epoch")


def check_rates(patience: int, weight_decay: float, lr: float = 1.0) -> None:
    """Refuse what no fit can work with."""
    if patience < 1 or lr <= 0 or weight_decay < 0:
        raise ValueError(f"lr = {lr}, patience = {patience}, weight_decay = {weight_decay}: out of range")


def copied(calibrator: Calibrator) -> dict[str, Tensor]:
    """Parameters of a calibrator as they are now."""
    return {name: value.detach().clone() for name, value in calibrator.state_dict().items()}


def identity_of(calibrator: Calibrator) -> Calibrator:
    """A calibrator of the same kind that changes nothing; what starts at random is drawn from a seed of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return type(calibrator)(calibrator.num_classes, calibrator.spatial_dims, **calibrator.options())
