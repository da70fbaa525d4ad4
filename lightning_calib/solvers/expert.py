"""The fit of one expert: which points it accepts and what it tries next."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_calib.solvers.coordinates import Coordinates
from lightning_calib.solvers.hessian import DenseHessian, Hessian, ProductHessian
from lightning_calib.solvers.model import Regularizer, SampleModel
from lightning_calib.solvers.projected import cubic_minimum, minimize, projected_gradient, quadratic_minimum

# Classes above which no Hessian is written down, and entries of all experts' Hessians together (256 MiB).
DENSE_CLASSES, DENSE_ENTRIES = 40, 2**25

# Decrease of the objective, relative, below which a pass has stalled; and what rounding may add to it in float32.
STALL, ROUNDING = 1e-10, 1e-8

# A fit has stalled only where the model promises no larger decrease than this, relative; a small gradient ends it where
# the model promises next to nothing, or where a pass brought nothing: along flat directions, those of rare classes, a
# small gradient may be far from the optimum.
PROMISE, NOTHING = 1e-7, 2e-8

# A step that leaves more than this share of what the model promised calls for another sample.
SLOW = 0.2

# Share of the gradient that a dense quadratic is minimised to: what a rough minimum is depends on the order in which
# bounds were met, which rounding decides.
EXACT = 1e-6

FIRST_DAMPING, DAMPING_UP, DAMPING_DOWN, SMALLEST_DAMPING = 1e-4, 30.0, 0.1, 1e-9
RESAMPLED_DAMPING = 1e-6  # at most, with a new sample: doubts about the old one no longer count
INNER_STEPS, EXACT_STEPS = 12, 30  # of models, and of those that are the objective itself

# Steps after which the Hessian is taken anew at the current point.
REFRESH = 12

# How the next trial point is found: the minimum of the sample's model, however far away, or a Newton step.
Phase = Literal["explore", "refine", "search"]

# How an expert ended.
Outcome = Literal["gradient", "stalled", "too few voxels"]


def is_dense(coordinates: Coordinates) -> bool:
    """Whether Hessians are small enough to be written down."""
    fits = coordinates.num_experts * coordinates.size**2 <= DENSE_ENTRIES
    return coordinates.small or (coordinates.num_classes <= DENSE_CLASSES and fits)


def hessian_at(model: SampleModel, theta: Tensor, exact: bool = False) -> Hessian:
    """Dense where that is small enough."""
    return DenseHessian(model, theta, exact) if is_dense(model.coordinates) else ProductHessian(model, theta)


@dataclass(frozen=True)
class Point:
    """A place and what a pass found there.

    Attributes:
        theta: coordinates ``(P,)``.
        data_gradient: of the data's share ``(P,)``.
        gradient: of the objective ``(P,)``.
        loss: the data's share of the objective.
        value: the objective.
        norm: largest entry of the projected gradient.
    """

    theta: Tensor
    data_gradient: Tensor
    gradient: Tensor
    loss: float = math.inf
    value: float = math.inf
    norm: float = math.inf


class Curvature:
    """The Hessian of the sample at a base point, corrected by how the exact gradient changed along each step since.

    Only base and corrections are state: the matrix is built from them when it is asked for.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Take the Hessian anew when it is next asked for."""
        self.base: Tensor | None = None
        self.corrections: list[tuple[Tensor, Tensor]] = []  # steps, and the change of the gradient along each
        self._hessian: Hessian | None = None

    def remember(self, step: Tensor, change: Tensor) -> None:
        """Correct the Hessian; rejected steps tell as much as others."""
        if self.base is None or float(step @ change) <= 1e-10 * float(step.norm() * change.norm()):
            return  # nothing to correct, or rounding
        self.corrections.append((step, change))
        if self._hessian is not None:
            self._hessian.update(step, change)

    def hessian(self, model: SampleModel, theta: Tensor) -> Hessian:
        """The corrected Hessian; after many steps it is taken anew at ``theta``."""
        if self.base is None or len(self.corrections) >= REFRESH:
            self.forget()
            self.base = theta
        if self._hessian is None:
            self._hessian = hessian_at(model, self.base, model.complete)  # its minimum was missed by rounding alone
            for step, change in self.corrections:
                self._hessian.update(step, change)
        return self._hessian


class ExpertFit:
    """State of one expert between passes.

    It explores first: the trial point minimises the model of the sample. After that it refines by Newton steps of the
    corrected Hessian, until a step is rejected or another sample comes: then it explores again.

    Args:
        theta: where it starts ``(P,)``.
        regularizer: its penalty and ridge.

    Attributes:
        best: the best point so far.
        trial: where the next pass looks ``(P,)``.
        phase: how the trial point after that is found.
        outcome: how the fit ended; None while it goes on.
        promise: decrease of the objective that the model expects of the trial point.
        misled: whether the last step fell so short of that that another sample is called for.
    """

    def __init__(self, theta: Tensor, regularizer: Regularizer) -> None:
        self.regularizer, self.coordinates = regularizer, regularizer.coordinates
        self.best = Point(theta.clone(), torch.zeros_like(theta), torch.zeros_like(theta))
        self.trial = theta.clone()
        self.phase: Phase = "explore"
        self.outcome: Outcome | None = None
        self.damping, self.decrease, self.stalls = FIRST_DAMPING, math.inf, 0
        self.promise, self.misled, self.fresh = math.inf, False, False
        self.curvature = Curvature()
        self.model: SampleModel | None = None
        self.rejected: Point | None = None

    @property
    def active(self) -> bool:
        """Whether the fit goes on."""
        return self.outcome is None

    @property
    def informed(self) -> bool:
        """Whether another sample would change nothing: it has all voxels, or has ended."""
        return not self.active or (self.model is not None and self.model.complete)

    def take(self, model: SampleModel, tolerance: float, scarce: bool = False) -> None:
        """Go on with another sample; one where rare classes are scarce is soon followed by the next."""
        self.model, self.phase, self.tolerance, self.fresh = model, "explore", tolerance, True
        self.promise = 0.0 if scarce else math.inf
        self.curvature.forget()
        if math.isfinite(self.best.value):
            self.damping = min(self.damping, RESAMPLED_DAMPING)

    def rest(self, identity_loss: float) -> None:
        """Keep the identity, for want of voxels."""
        self.settle(identity_loss)
        self.outcome, self.trial, self.best = "too few voxels", self.best.theta, replace(self.best, norm=0.0)

    def receive(self, loss: float, matrix_gradient: Tensor) -> None:
        """Take the data's share of objective and gradient at the trial point; move there if it is no worse."""
        found = self._point(loss, matrix_gradient)
        self.curvature.remember(found.theta - self.best.theta, found.gradient - self.best.gradient)
        if not self._improves(found):
            self.decrease = math.inf
            if self.fresh:  # the step was that of an older sample: this one may know better
                self.phase = "explore"
            elif self.phase == "search":  # the point between was no better: the direction is a bad one
                self.damping, self.phase = self.damping * DAMPING_UP, "explore"
            else:
                self.phase, self.rejected = "search", found
            return
        if found.norm < self.best.norm:
            self.damping = max(self.damping * DAMPING_DOWN, SMALLEST_DAMPING)
        if self.phase == "search":
            self.phase = "refine"
        self.decrease, self.best = self.best.value - found.value, found

    def advance(self, tolerance: float, objective: float) -> None:
        """Stop where a rule is met, else propose the next trial point."""
        if not self.active:
            return
        small, last = self.best.norm <= tolerance, self.promise
        if small and self.model is not None and self.model.complete:
            self.outcome = "gradient"
            return
        self._propose()
        gained = STALL * objective <= self.decrease < math.inf  # infinite: the step was rejected
        self.promise = float(self.best.gradient @ (self.best.theta - self.trial)) / 2
        large = self.promise > PROMISE * objective
        self.stalls, self.misled = 0 if gained or large else self.stalls + 1, large and self.promise > SLOW * last
        if small and (self.stalls or self.promise <= NOTHING * objective):
            self.outcome = "gradient"
        elif self.stalls >= 2:
            self.outcome = "stalled"

    def _propose(self) -> None:
        """Choose the next trial point."""
        self.fresh = False
        if self.phase == "search":
            assert self.rejected is not None
            self.trial = self._between(self.rejected)
            return
        assert self.model is not None
        self.trial = self._explore(self.model) if self.phase == "explore" else self._refine(self.model)
        self.phase = "refine"

    def settle(self, identity_loss: float) -> None:
        """End at the identity where that is better, or where nothing was fitted."""
        identity = self.coordinates.identity()
        value = identity_loss + float(self.regularizer.value_and_gradient(identity)[0])
        if not self.best.value <= value:
            self.best = replace(self.best, theta=identity, value=value, loss=identity_loss)

    def state_dict(self) -> dict[str, Any]:
        """All but the model and the Hessian, which are rebuilt."""
        curvature = {"base": self.curvature.base, "corrections": list(self.curvature.corrections)}
        points = {"best": vars(self.best).copy(), "rejected": self.rejected and vars(self.rejected).copy()}
        return {name: getattr(self, name) for name in _STATE} | points | curvature

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values of :meth:`state_dict`."""
        vars(self).update({name: state[name] for name in _STATE})
        self.best = Point(**state["best"])
        self.rejected = None if state["rejected"] is None else Point(**state["rejected"])
        self.curvature.base, self.curvature.corrections = state["base"], list(state["corrections"])

    def _point(self, loss: float, matrix_gradient: Tensor) -> Point:
        """The trial point as the pass found it."""
        data_gradient = self.coordinates.pullback(matrix_gradient)
        extra, extra_gradient = self.regularizer.value_and_gradient(self.trial)
        gradient = data_gradient + extra_gradient
        projected = projected_gradient(self.trial, gradient, self.coordinates.lower, self.coordinates.upper)
        value, norm = loss + float(extra), float(projected.abs().max())
        return Point(self.trial, data_gradient, gradient, loss, value, norm)

    def _improves(self, found: Point) -> bool:
        """Whether a point is better; by slopes where rounding has drowned the values' difference.

        By convexity, a slope that still points down at the trial point means that the objective fell; one that points
        up less steeply than it pointed down means so, too, as far as the objective is a quadratic (the approximate
        conditions of Hager and Zhang 2005).
        """
        best, step = self.best, found.theta - self.best.theta
        start, end = float(best.gradient @ step), float(found.gradient @ step)
        near = found.value <= best.value + ROUNDING * abs(best.value) and end <= -0.8 * start
        return found.value <= best.value or end <= 0 or near

    def _between(self, found: Point) -> Tensor:
        """A point on the way to a rejected one."""
        step = found.theta - self.best.theta
        start, end = float(self.best.gradient @ step), float(found.gradient @ step)
        return self.best.theta + cubic_minimum(found.value - self.best.value, start, end) * step

    def _explore(self, model: SampleModel) -> Tensor:
        """The minimum of the model with the exact slope at the best point."""
        self.curvature.forget()
        model.anchor(self.best.theta, self.best.data_gradient, 0.0 if model.complete else self.damping)
        steps, tolerance = (EXACT_STEPS, self.tolerance / 4) if model.complete else (INNER_STEPS, math.inf)
        return minimize(model, hessian_at, self.best.theta, steps, tolerance)

    def _refine(self, model: SampleModel) -> Tensor:
        """The minimum of the corrected quadratic."""
        theta, lower, upper = self.best.theta, self.coordinates.lower, self.coordinates.upper
        hessian = self.curvature.hessian(model, theta)
        hessian.damping = self.damping * model.metric
        accuracy = EXACT if is_dense(self.coordinates) else hessian.accuracy
        tolerance = accuracy * self.best.norm
        step = quadratic_minimum(hessian, self.best.gradient, lower - theta, upper - theta, tolerance)
        return (theta + step).clamp(lower, upper)


_STATE = ("trial", "phase", "outcome", "damping", "decrease", "stalls", "promise", "misled")
