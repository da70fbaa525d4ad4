"""The fit of one expert: which points it accepts and what it tries next."""

import math

import torch
from torch import Tensor

from lightning_calib.solvers.hessian import DenseHessian, Hessian, ProductHessian
from lightning_calib.solvers.model import Regularizer, SampleModel
from lightning_calib.solvers.projected import minimize, projected_gradient

# Coordinates up to which all entries of the Hessian are kept (C = 40 for a full matrix).
DENSE_LIMIT = 1640

STALL = 1e-10
FIRST_DAMPING, DAMPING_UP, DAMPING_DOWN, SMALLEST_DAMPING = 1e-4, 30.0, 0.1, 1e-9
INNER_ACCURACY, INNER_STEPS = 0.02, 12


def hessian_at(model: SampleModel, theta: Tensor) -> Hessian:
    """Dense where it is small enough."""
    return DenseHessian(model, theta) if model.coordinates.size <= DENSE_LIMIT else ProductHessian(model, theta)


_REBUILT = ("regularizer", "coordinates", "model")


class ExpertFit:
    """State of one expert between passes.

    Args:
        theta: where it starts ``(P,)``.
        regularizer: its penalty and ridge.
    """

    def __init__(self, theta: Tensor, regularizer: Regularizer) -> None:
        self.regularizer, self.coordinates = regularizer, regularizer.coordinates
        self.theta, self.trial = theta.clone(), theta.clone()
        self.model: SampleModel | None = None
        self.active, self.reason = True, "budget"
        self.value, self.loss, self.gradient_norm = math.inf, math.inf, math.inf
        self.data_gradient = torch.zeros_like(theta)
        self.gradient = torch.zeros_like(theta)
        self.damping, self.predicted, self.decrease, self.stalls = FIRST_DAMPING, math.inf, math.inf, 0

    def rest(self) -> None:
        """Keep the identity, for want of voxels."""
        self.trial = self.coordinates.identity()
        self.active, self.reason = False, "too few voxels"

    def receive(self, loss: float, matrix_gradient: Tensor) -> None:
        """Take the data's share of objective and gradient at the trial point; accept it if it is no worse."""
        data_gradient = self.coordinates.pullback(matrix_gradient)
        extra, extra_gradient = self.regularizer.value_and_gradient(self.trial)
        value, gradient = loss + float(extra), data_gradient + extra_gradient
        # By convexity, a slope that still points down at the trial point means that the objective fell; this holds
        # where rounding has drowned the difference of the values.
        falling = float(gradient @ (self.trial - self.theta)) <= 0
        if not (value <= self.value or falling):
            self._reject()
            return
        self.decrease = self.value - value
        self._accept(loss, value, data_gradient, gradient)

    def advance(self, tolerance: float, objective: float) -> None:
        """Stop where a rule is met, else propose the next trial point."""
        if not self.active:
            return
        self.stalls = self.stalls + 1 if min(self.decrease, self.predicted) < STALL * objective else 0
        if self.gradient_norm <= tolerance:
            self.active, self.reason = False, "gradient"
        elif self.stalls >= 2:
            self.active, self.reason = False, "stalled"
        else:
            self._propose()

    def compare_with_identity(self, identity_loss: float) -> None:
        """Fall back to the identity where it is better."""
        identity = self.coordinates.identity()
        value = identity_loss + float(self.regularizer.value_and_gradient(identity)[0])
        if not self.value <= value:
            self.theta, self.value, self.loss = identity, value, identity_loss

    def state_dict(self) -> dict[str, Tensor | float | str | bool]:
        """All but the model, which the solver rebuilds."""
        return {name: value for name, value in vars(self).items() if name not in _REBUILT}

    def load_state_dict(self, state: dict[str, Tensor | float | str | bool]) -> None:
        """Take the values of :meth:`state_dict`."""
        vars(self).update(state)

    def _accept(self, loss: float, value: float, data_gradient: Tensor, gradient: Tensor) -> None:
        """Move to the trial point."""
        before = self.gradient_norm
        self.theta, self.loss, self.value = self.trial, loss, value
        self.data_gradient, self.gradient = data_gradient, gradient
        free = projected_gradient(self.theta, gradient, self.coordinates.lower, self.coordinates.upper)
        self.gradient_norm = float(free.abs().max())
        if self.gradient_norm < before:
            self.damping = max(self.damping * DAMPING_DOWN, SMALLEST_DAMPING)

    def _reject(self) -> None:
        """Stay, and trust the model less."""
        self.damping *= DAMPING_UP
        self.decrease = math.inf

    def _propose(self) -> None:
        """Minimise the model."""
        assert self.model is not None
        self.model.anchor(self.theta, self.data_gradient, self.damping)
        before = self.model.value_and_gradient(self.theta)[0]
        self.trial = minimize(self.model, hessian_at, self.theta, INNER_ACCURACY, INNER_STEPS)
        self.predicted = before - self.model.value_and_gradient(self.trial)[0]
