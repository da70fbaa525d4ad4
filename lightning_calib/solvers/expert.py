"""The fit of one expert: which points it accepts and what it tries next."""

import math

import torch
from torch import Tensor

from lightning_calib.solvers.hessian import DenseHessian, Hessian, ProductHessian
from lightning_calib.solvers.model import Regularizer, SampleModel
from lightning_calib.solvers.projected import minimize, projected_gradient, quadratic_minimum

# Classes above which no Hessian is written down, and entries of all experts' Hessians together (256 MiB).
DENSE_CLASSES, DENSE_ENTRIES = 40, 2**25

# Decrease of the objective, relative, below which a pass has stalled; and what rounding may add to it in float32.
STALL, ROUNDING = 1e-10, 1e-8

FIRST_DAMPING, DAMPING_UP, DAMPING_DOWN, SMALLEST_DAMPING = 1e-4, 30.0, 0.1, 1e-9
RESAMPLED_DAMPING = 1e-6  # at most, with a new sample: doubts about the old one no longer count
INNER_STEPS = 12

# Steps after which the Hessian is taken anew at the current point.
REFRESH = 12

_REBUILT = ("regularizer", "coordinates", "model", "hessian")


def hessian_at(model: SampleModel, theta: Tensor) -> Hessian:
    """Dense where that is small enough."""
    coordinates = model.coordinates
    small = coordinates.num_experts * coordinates.size**2 <= DENSE_ENTRIES
    dense = coordinates.diagonal or (coordinates.num_classes <= DENSE_CLASSES and small)
    return DenseHessian(model, theta) if dense else ProductHessian(model, theta)


class ExpertFit:
    """State of one expert between passes.

    The first trial point minimises the model of the sample, however far away, and so does the next one after a
    rejected step or with another sample. Elsewhere the Hessian of the sample, corrected by how the exact gradient
    changed along each step since (BFGS), gives Newton steps.

    Args:
        theta: where it starts ``(P,)``.
        regularizer: its penalty and ridge.
    """

    def __init__(self, theta: Tensor, regularizer: Regularizer) -> None:
        self.regularizer, self.coordinates = regularizer, regularizer.coordinates
        self.theta, self.trial = theta.clone(), theta.clone()
        self.model: SampleModel | None = None
        self.hessian: Hessian | None = None
        self.active, self.reason = True, "budget"
        self.value, self.loss, self.gradient_norm = math.inf, math.inf, math.inf
        self.data_gradient, self.gradient = torch.zeros_like(theta), torch.zeros_like(theta)
        self.damping, self.decrease, self.stalls = FIRST_DAMPING, math.inf, 0
        self.explored = False  # whether the model's own minimum was tried
        self.base: Tensor | None = None  # where the Hessian was taken
        self.steps: list[Tensor] = []
        self.changes: list[Tensor] = []  # of the gradient, along each step

    def take(self, model: SampleModel) -> None:
        """Go on with another sample; the Hessian is built from it at the next step."""
        self.model, self.base, self.steps, self.changes, self.hessian = model, None, [], [], None
        self.explored = False
        if math.isfinite(self.value):
            self.damping = min(self.damping, RESAMPLED_DAMPING)

    def rest(self, identity_loss: float) -> None:
        """Keep the identity, for want of voxels."""
        self.active, self.reason, self.gradient_norm = False, "too few voxels", 0.0
        self.settle(identity_loss)
        self.trial = self.theta

    def receive(self, loss: float, matrix_gradient: Tensor) -> None:
        """Take the data's share of objective and gradient at the trial point; move there if it is no worse."""
        data_gradient = self.coordinates.pullback(matrix_gradient)
        extra, extra_gradient = self.regularizer.value_and_gradient(self.trial)
        value, gradient = loss + float(extra), data_gradient + extra_gradient
        norm = self._norm(self.trial, gradient)
        self._remember(gradient)
        if not self._improves(value, gradient, norm):
            self.damping *= DAMPING_UP
            self.decrease = math.inf
            return
        if norm < self.gradient_norm:
            self.damping = max(self.damping * DAMPING_DOWN, SMALLEST_DAMPING)
        self.decrease = self.value - value
        self.theta, self.loss, self.value, self.gradient_norm = self.trial, loss, value, norm
        self.data_gradient, self.gradient = data_gradient, gradient

    def advance(self, tolerance: float, objective: float) -> None:
        """Stop where a rule is met, else propose the next trial point."""
        if not self.active:
            return
        self.stalls = self.stalls + 1 if self.decrease < STALL * objective else 0
        if self.gradient_norm <= tolerance:
            self.active, self.reason = False, "gradient"
        elif self.stalls >= 2:
            self.active, self.reason = False, "stalled"
        else:
            self._propose()

    def settle(self, identity_loss: float) -> None:
        """End at the identity where that is better, or where nothing was fitted."""
        identity = self.coordinates.identity()
        value = identity_loss + float(self.regularizer.value_and_gradient(identity)[0])
        if not self.value <= value:
            self.theta, self.value, self.loss = identity, value, identity_loss

    def state_dict(self) -> dict[str, object]:
        """All but the model and the Hessian, which are rebuilt."""
        return {name: value for name, value in vars(self).items() if name not in _REBUILT}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take the values of :meth:`state_dict`."""
        vars(self).update(state)

    def _improves(self, value: float, gradient: Tensor, norm: float) -> bool:
        """Whether the trial point is better; by its gradient where rounding has drowned the values' difference.

        By convexity, a slope that still points down at the trial point means that the objective fell.
        """
        falling = float(gradient @ (self.trial - self.theta)) <= 0
        near = value <= self.value + ROUNDING * abs(self.value) and norm <= self.gradient_norm / 2
        return value <= self.value or falling or near

    def _norm(self, theta: Tensor, gradient: Tensor) -> float:
        """Largest entry of the projected gradient."""
        return float(projected_gradient(theta, gradient, self.coordinates.lower, self.coordinates.upper).abs().max())

    def _remember(self, gradient: Tensor) -> None:
        """Correct the Hessian by the change of the gradient; rejected steps tell as much as others."""
        if self.base is None:
            return
        step, change = self.trial - self.theta, gradient - self.gradient
        if float(step @ change) <= 1e-10 * float(step.norm() * change.norm()):
            return  # rounding
        self.steps.append(step)
        self.changes.append(change)
        if self.hessian is not None:
            self.hessian.update(step, change)

    def _propose(self) -> None:
        """The minimum of the model where that is new or a step was rejected, else of the corrected quadratic."""
        assert self.model is not None
        rejected = not math.isfinite(self.decrease)
        if rejected or not self.explored:
            self.explored, self.base = True, None
            self.model.anchor(self.theta, self.data_gradient, self.damping)
            self.trial = minimize(self.model, hessian_at, self.theta, INNER_STEPS)
            return
        hessian = self._corrected(self.model)
        hessian.damping = self.damping
        lower, upper = self.coordinates.lower - self.theta, self.coordinates.upper - self.theta
        step = quadratic_minimum(hessian, self.gradient, lower, upper, hessian.accuracy * self.gradient_norm)
        self.trial = (self.theta + step).clamp(self.coordinates.lower, self.coordinates.upper)

    def _corrected(self, model: SampleModel) -> Hessian:
        """The Hessian at the base with all corrections; after a resume or many steps it is built again."""
        if self.base is None or len(self.steps) >= REFRESH:
            self.base, self.steps, self.changes, self.hessian = self.theta, [], [], None
        if self.hessian is None:
            self.hessian = hessian_at(model, self.base)
            for step, change in zip(self.steps, self.changes, strict=True):
                self.hessian.update(step, change)
        return self.hessian
