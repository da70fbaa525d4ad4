r"""Minimum of a smooth convex function within bounds: Newton steps whose quadratic model respects the bounds.

The quadratic model is solved by two-metric projection (Bertsekas 1982): variables at a bound whose gradient pushes
outwards leave the system before it is solved; projecting a full Newton step instead can get stuck.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_calib.solvers.hessian import Hessian
from lightning_calib.solvers.model import SampleModel

ARMIJO = 1e-4
MAX_HALVINGS = 30
QUADRATIC_STEPS = 60


def projected_gradient(theta: Tensor, gradient: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The gradient without what pushes against a bound.

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> projected_gradient(zero, torch.tensor([3.0, -3.0]), zero, one)
        tensor([ 0., -3.])
    """
    blocked = ((theta <= lower) & (gradient > 0)) | ((theta >= upper) & (gradient < 0))
    return gradient.masked_fill(blocked, 0)


def quadratic_minimum(hessian: Hessian, gradient: Tensor, lower: Tensor, upper: Tensor, tolerance: float) -> Tensor:
    r"""``argmin <g, d> + <d, H d> / 2`` over ``lower <= d <= upper``, for bounds with ``lower <= 0 <= upper``.

    Args:
        hessian: ``H``, positive definite.
        gradient: ``g (P,)``.
        lower: bounds ``(P,)``.
        upper: bounds ``(P,)``.
        tolerance: largest entry of the projected gradient to stop at.
    """
    step = torch.zeros_like(gradient)
    for _ in range(QUADRATIC_STEPS):
        slope = gradient + hessian.product(step)
        free = projected_gradient(step, slope, lower, upper)
        if free.abs().max() <= tolerance:
            break
        direction = hessian.solve(free != 0, -free)
        trial = _arc(hessian, step, slope, direction, lower, upper)
        if torch.equal(trial, step):
            break
        step = trial
    return step


def _arc(hessian: Hessian, step: Tensor, slope: Tensor, direction: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Best point of ``clip(step + a direction)``, ``a = 1, 1/2, ...``, that decreases the quadratic enough."""
    length = 1.0
    for _ in range(MAX_HALVINGS):
        trial = (step + length * direction).clamp(lower, upper)
        move = trial - step
        if slope @ move + move @ hessian.product(move) / 2 <= ARMIJO * (slope @ move):
            return trial
        length /= 2
    return step


def minimize(
    model: SampleModel,
    hessian_at: Callable[[SampleModel, Tensor], Hessian],
    theta: Tensor,
    max_steps: int,
) -> Tensor:
    """Minimum of the model within the bounds of its coordinates, from ``theta (P,)`` inside them.

    Args:
        model: value and gradient.
        hessian_at: builds the Hessian at a point.
        theta: the start.
        max_steps: Newton steps at most.
    """
    lower, upper = model.coordinates.lower, model.coordinates.upper
    value, gradient = model.value_and_gradient(theta)
    start = float(projected_gradient(theta, gradient, lower, upper).abs().max())
    for _ in range(max_steps):
        hessian = hessian_at(model, theta)
        hessian.damping = model.damping
        goal = hessian.accuracy * start
        step = quadratic_minimum(hessian, gradient, lower - theta, upper - theta, goal / 4)
        theta, value, gradient, moved = _search(model, theta, value, gradient, step)
        size = projected_gradient(theta, gradient, lower, upper).abs().max()
        if not moved or float(size) <= goal:
            break
    return theta


def _search(
    model: SampleModel, theta: Tensor, value: float, gradient: Tensor, step: Tensor
) -> tuple[Tensor, float, Tensor, bool]:
    """Halve the step until the model decreases enough; both ends of the step are within the bounds."""
    decrease = float(gradient @ step)
    lower, upper = model.coordinates.lower, model.coordinates.upper
    length = 1.0
    for _ in range(MAX_HALVINGS):
        trial = (theta + length * step).clamp(lower, upper)
        trial_value, trial_gradient = model.value_and_gradient(trial)
        if trial_value <= value + ARMIJO * length * decrease:
            return trial, trial_value, trial_gradient, True
        length /= 2
    return theta, value, gradient, False
