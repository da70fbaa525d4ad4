"""Fits by Adam, as in the paper: for LTS, whose objective is not convex, and to compare others with."""

import copy
import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_calib.calibrators import Calibrator, Identity
from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.newton import Batch
from lightning_calib.solvers.objective import EPS, LAM, MU, nll_sum, regularization


@torch.no_grad()
def mean_nll(calibrator: Calibrator, batches: Iterable[Batch], ignore_index: int | None = None) -> tuple[float, int]:
    """Mean of ``-log q_y`` over the voxels of all batches, and their number."""
    total, count = 0.0, 0
    for logits, target, _ in batches:
        loss, voxels = nll_sum(calibrator, logits, target, ignore_index)
        total, count = total + float(loss), count + int(voxels)
    if count == 0:
        raise ValueError("no valid voxels: every target is ignore_index, or there are no batches")
    return total / count, count


def fit_adam(
    calibrator: Calibrator,
    batches: Iterable[Batch],
    val: Iterable[Batch] | None = None,
    ignore_index: int | None = None,
    lam: float = LAM,
    mu: float = MU,
    eps: float = EPS,
    lr: float = 1e-2,
    weight_decay: float = 0.0,
    patience: int = 20,
    max_epochs: int = 300,
) -> Certificate:
    """Fit in place by Adam with a learning rate that halves on plateaus, and early stopping.

    The best epoch wins, the start among them: by mean NLL of ``val``, or by the objective where there is none.

    Args:
        calibrator: the calibrator, also one with experts: all are trained at once.
        batches: a re-iterable of logits, targets and case ids; each batch is one step. LTS takes whole images or
            crops.
        val: batches to stop and to choose by.
        ignore_index: label of voxels that do not count.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        lr: learning rate.
        weight_decay: l2 regularisation of LTS.
        patience: epochs without a better one before the end; the learning rate halves after half as many.
        max_epochs: epochs at most.
    """
    judge = batches if val is None else val
    identity, _ = mean_nll(Identity(calibrator.num_classes), batches, ignore_index)
    optimizer = torch.optim.Adam(calibrator.parameters(), lr=lr, weight_decay=weight_decay)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=patience // 2)

    def score() -> float:
        extra = 0.0 if val is not None else float(regularization(calibrator, lam, mu, eps).detach())
        return mean_nll(calibrator, judge, ignore_index)[0] + extra

    history, best, best_epoch = [score()], copy.deepcopy(calibrator.state_dict()), 0
    for epoch in range(1, max_epochs + 1):
        for logits, target, _ in batches:
            _step(calibrator, optimizer, logits, target, ignore_index, (lam, mu, eps))
        history.append(score())
        if not math.isfinite(history[-1]):
            raise ConvergenceError(f"the objective is {history[-1]} after epoch {epoch}; lower the learning rate {lr}")
        plateau.step(history[-1])
        if history[-1] < history[best_epoch]:
            best, best_epoch = copy.deepcopy(calibrator.state_dict()), epoch
        elif epoch - best_epoch >= patience:
            break
    calibrator.load_state_dict(best)
    nll, count = mean_nll(calibrator, batches, ignore_index)
    stopped = len(history) - 1 - best_epoch >= patience
    return Certificate(
        solver="adam",
        converged=stopped,
        reason="early stopping" if stopped else "budget",
        passes=len(history) - 1,
        objective=nll + float(regularization(calibrator, lam, mu, eps).detach()),
        identity_objective=identity,
        nll=nll,
        gradient_norm=math.nan,
        num_voxels=count,
        hyperparameters={"lam": lam, "mu": mu, "eps": eps, "lr": lr, "weight_decay": weight_decay},
        history=history,
    )


def _step(
    calibrator: Calibrator,
    optimizer: torch.optim.Adam,
    logits: Tensor,
    target: Tensor,
    ignore_index: int | None,
    strengths: tuple[float, float, float],
) -> None:
    """One step on a batch."""
    loss, count = nll_sum(calibrator, logits, target, ignore_index)
    if int(count) == 0:
        return
    optimizer.zero_grad()
    torch.autograd.backward(loss / count + regularization(calibrator, *strengths))
    optimizer.step()
    calibrator.project_()
