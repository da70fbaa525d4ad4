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
MAX_HALVINGS, MAX_TRIALS = 30, 12
QUADRATIC_STEPS = 60
SHORTEST, LONGEST = 0.05, 0.7  # share of a rejected step that is tried next

# A step that leaves more than this share of the gradient calls for second derivatives at the new point; others correct
# the old ones. No model is minimised to less than ROUNDING of its first gradient.
SLOW, ROUNDING = 0.3, 1e-7
SLOW_OF_MANY, MANY = 0.6, 8192  # of many voxels, in a search, second derivatives cost many steps
LEAST_DAMPING, MOST_DAMPING = 1e-9, 1e-3  # of steps that nothing else made shorter


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
    step, slope, free = torch.zeros_like(gradient), gradient, torch.full_like(gradient, torch.inf)
    for _ in range(QUADRATIC_STEPS):
        last = free
        free = projected_gradient(step, slope, lower, upper)
        refined = torch.equal(free != 0, last != 0) and free.abs().max() > last.abs().max() / 2
        if free.abs().max() <= tolerance or refined:  # the same equations again: what is left is rounding
            break
        direction = hessian.solve(free != 0, -free)
        trial = _arc(hessian, step, slope, direction, lower, upper)
        if torch.equal(trial, step):
            break
        step, slope = trial, gradient + hessian.product(trial)
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
    tolerance: float = torch.inf,
) -> Tensor:
    """Minimum of the model within the bounds of its coordinates, from ``theta (P,)`` inside them.

    Args:
        model: value and gradient.
        hessian_at: builds the Hessian at a point.
        theta: the start.
        max_steps: Newton steps at most.
        tolerance: largest entry of the projected gradient to stop at, if that is less than a share of the first.
    """
    lower, upper = model.coordinates.lower, model.coordinates.upper
    value, gradient = model.value_and_gradient(theta)
    size = start = float(projected_gradient(theta, gradient, lower, upper).abs().max())
    many = model.shared is not None and len(model.weight) > MANY
    hessian, damping, slow = None, 0.0, SLOW_OF_MANY if many else SLOW
    for _ in range(max_steps):
        if hessian is None:
            hessian = hessian_at(model, theta)
            hessian.damping, fresh = model.damping + damping * model.metric, True
        goal = min(hessian.accuracy * start, max(tolerance, ROUNDING * start))
        step = quadratic_minimum(
            hessian, gradient, lower - theta, upper - theta, max(goal, size * hessian.accuracy) / 4
        )
        before, slope, last = theta, gradient, size
        theta, value, gradient, moved = _search(model, theta, value, gradient, step)
        size = float(projected_gradient(theta, gradient, lower, upper).abs().max())
        if size <= goal or (fresh and not moved and damping >= MOST_DAMPING):
            break
        if moved and size < slow * last:
            _correct(hessian, theta - before, gradient - slope)
            fresh = False
            continue
        if fresh and not moved:  # rounding has spoilt flat directions
            damping = max(LEAST_DAMPING, 100 * damping)
        hessian = None
    return theta


def _correct(hessian: Hessian, step: Tensor, change: Tensor) -> None:
    """Make the Hessian, without its damping, fit how the gradient changed along a step."""
    change = change - hessian.damping * step
    if float(step @ change) > 1e-10 * float(step.norm() * change.norm()):
        hessian.update(step, change)


def _search(
    model: SampleModel, theta: Tensor, value: float, gradient: Tensor, step: Tensor
) -> tuple[Tensor, float, Tensor, bool]:
    """Halve the step until the model decreases enough; both ends of the step are within the bounds."""
    decrease = float(gradient @ step)
    lower, upper = model.coordinates.lower, model.coordinates.upper
    length = 1.0
    for _ in range(MAX_TRIALS):
        trial = (theta + length * step).clamp(lower, upper)
        trial_value, trial_gradient = model.value_and_gradient(trial)
        if trial_value <= value + ARMIJO * length * decrease:
            return trial, trial_value, trial_gradient, True
        length *= cubic_minimum(trial_value - value, length * decrease, length * float(trial_gradient @ step))
    return theta, value, gradient, False


def cubic_minimum(rise: float, start: float, end: float) -> float:
    """Share of a step where the cubic through both its ends is lowest (Nocedal and Wright 2006, equation 3.59).

    Args:
        rise: how much higher the end is.
        start: slope along the step where it begins.
        end: the same where it ends.

    Example:
        >>> cubic_minimum(rise=0.0, start=-1.0, end=1.0)
        0.5
    """
    middle = start + end - 3 * rise
    root = max(middle * middle - start * end, 0.0) ** 0.5
    share = 1 - (end + root - middle) / (end - start + 2 * root) if end > start else 0.5
    return min(max(share, SHORTEST), LONGEST)
