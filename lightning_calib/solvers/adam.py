"""Fits by Adam, as in the paper: to compare others with, and for calibrators that no other solver fits."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_calib.calibrators import Calibrator
from lightning_calib.calibrators.base import known_finite
from lightning_calib.functional.penalty import Reduction
from lightning_calib.solvers.base import BatchKind, SolverName, check_size
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.epochs import MAX_EPOCHS, EpochSolver, check_rates
from lightning_calib.solvers.objective import EPS, LAM, MU, nll_sum


class AdamSolver(EpochSolver):
    """Adam with a learning rate that halves on plateaus, and early stopping; a batch is a step.

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
        check_rates(patience, weight_decay, lr)
        shared = (lam, mu, eps, ignore_index, collective, weight_decay, patience, max_epochs, epochs, reduction)
        super().__init__(calibrator, *shared)
        self.hyperparameters |= {"lr": lr, "patience": patience, "weight_decay": weight_decay}
        self.batches = adam_batches(calibrator)
        self.optimizer = torch.optim.Adam(calibrator.parameters(), lr=lr, weight_decay=weight_decay)
        self.plateau = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=patience // 2)
        self.steps, self.loss = 0, torch.zeros((), dtype=torch.float64)
        self.mean_loss = math.nan

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
            if self.epoch == 0:
                check_size([logits])
            count = self.collective.sum(count.to(total)).clamp(min=1)
            loss = total / count + self.regularization() / self.collective.size
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        self._share(parameters, gradients)
        self.optimizer.step()
        self.calibrator.project_()
        self.loss, self.steps = self.loss.to(loss.device) + loss.detach(), self.steps + 1

    def progress(self) -> dict[str, float]:
        """Mean loss of the last epoch's steps, and the learning rate."""
        return {"loss": self.mean_loss, "lr": float(self.optimizer.param_groups[0]["lr"])}

    def state_dict(self) -> dict[str, Any]:
        """The state of everything that changes; a fit whose budget ended can go on with a larger one."""
        states = {"optimizer": self.optimizer.state_dict(), "plateau": self.plateau.state_dict()}
        return super().state_dict() | states | {"mean_loss": self.mean_loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])
        self.plateau.load_state_dict(state["plateau"])
        self.mean_loss = state["mean_loss"]

    def _share(self, parameters: list[Parameter], gradients: tuple[Tensor | None, ...]) -> None:
        """Give the parameters the gradient of all processes together."""
        used = [pair for pair in zip(parameters, gradients, strict=True) if pair[1] is not None]
        flat = [gradient.flatten() for _, gradient in used if gradient is not None]
        if self.collective.size > 1:
            flat = list(torch.split(self.collective.sum(torch.cat(flat)), [len(part) for part in flat]))
        for (parameter, _), part in zip(used, flat, strict=True):
            parameter.grad = part.view(parameter.shape)

    def _end_epoch(self) -> None:
        super()._end_epoch()
        self.mean_loss = float(self.collective.sum(self.loss)) / max(1, self.steps)
        self.steps, self.loss = 0, torch.zeros_like(self.loss)

    def _judge(self, score: float, seen: float) -> None:
        """Take an epoch's score on record; ``seen`` is what schedule and stopping get of it."""
        self.plateau.step(seen)
        super()._judge(score, seen)

    def _remedy(self) -> str:
        return f"lower the learning rate {self.hyperparameters['lr']}"


def adam_batches(calibrator: Calibrator) -> BatchKind:
    """What a step is taken on: random voxels, or images where neighbours matter."""
    return "images" if calibrator.looks_at == "neighbourhood" else "voxels"
