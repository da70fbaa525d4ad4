r"""Weights of a stack: the convex problem that chooses a mixture, solved exactly.

With ratios :math:`r_{ki} \propto q_k(y_i)` of K maps at n voxels of weight :math:`a_i` (they sum to 1), the weights
minimise :math:`f(w) = -\sum_i a_i \log \sum_k w_k r_{ki}` over the simplex. By the gains

.. math:: g_k = \sum_i a_i \frac{r_{ki}}{\sum_j w_j r_{ji}}

a point is optimal if and only if all are at most 1, and no point of the simplex is better than it by more than
:math:`\log \max_k g_k` (Jensen's inequality): the certificate.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from lightning_calib.solvers.certificate import ConvergenceError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

TOLERANCE = 1e-12  # of the certificate, in nats
NEGLIGIBLE = 1e-8  # nats for which no part is kept: parts that say the same would share a weight by rounding
_MAX_STEPS = 200
_RIDGE = 1e-10  # keeps the steps finite where parts say the same; in relation to the curvature


@dataclass(frozen=True)
class StackWeights:
    """Weights of a stack, and what is known about them.

    Attributes:
        weights: ``w (K,)``, on the simplex; zeros are exact.
        nll: weighted mean ``-log sum_k w_k q_k``.
        part_nll: that of each part alone.
        gap: no other weights have an NLL lower by more than this.
        steps: Newton steps that were taken.
    """

    weights: tuple[float, ...]
    nll: float
    part_nll: tuple[float, ...]
    gap: float
    steps: int


def fit_weights(log_q: ArrayLike, weights: ArrayLike | None = None, floor: float = 0.0) -> StackWeights:
    """Weights that minimise the NLL of a mixture over the simplex.

    Newton's method on the simplex, from its centre: each step solves the quadratic model under the bounds (Kim,
    Carbonetto, Stephens & Anitescu 2020), so that weights arrive at 0 exactly. Of parts that say the same, the
    earlier ones are kept: a part that improves the NLL by less than 1e-8 is left out, the last ones first.

    Args:
        log_q: log-probabilities of the labels ``(K, n)``, by K maps at n voxels; simple maps first.
        weights: of the voxels ``(n,)``, at least 0; equal by default.
        floor: least weight of the first map, in [0, 1): with the identity there, ``-log(floor)`` bounds what the
            mixture can lose at a voxel.

    Example:
        >>> found = fit_weights(np.log([[0.5, 0.5, 0.5, 0.5], [0.9, 0.9, 0.9, 0.1]]))
        >>> [round(weight, 9) for weight in found.weights], found.gap < 1e-9
        ([0.375, 0.625], True)
    """
    values, shares = _checked(log_q, weights, floor)
    floored = np.logaddexp(np.log(floor) + values[:1], np.log1p(-floor) + values) if floor else values
    point, gap, steps = _Problem(floored, shares).pruned()
    found = (1 - floor) * point
    found[0] += floor
    return StackWeights(
        weights=tuple(found.tolist()),
        nll=_Problem(values, shares).value(found),
        part_nll=tuple((-(values @ shares)).tolist()),
        gap=gap,
        steps=steps,
    )


class _Problem:
    """The objective for log-probabilities ``(K, n)`` and shares ``(n,)`` of the voxels.

    Ratios are relative to the largest at each voxel: the centre of the simplex has mass at least 1/K everywhere.
    """

    def __init__(self, log_q: Floats, shares: Floats) -> None:
        self.log_q, self.shares = log_q, shares
        top = log_q.max(axis=0)
        self.ratios, self.offset = np.exp(log_q - top), float(shares @ top)

    def value(self, point: Floats) -> float:
        """NLL of the mixture; infinite where a voxel has no mass."""
        with np.errstate(divide="ignore"):
            return float(-(self.shares @ np.log(point @ self.ratios))) - self.offset

    def gap(self, point: Floats) -> float:
        """How much better another point can be, at most."""
        return max(0.0, math.log(self.gains(point).max()))

    def gains(self, point: Floats) -> Floats:
        """``g (K,)``, the negative gradient; their mean by ``w`` is 1."""
        return np.asarray(self.ratios @ (self.shares / (point @ self.ratios)))

    def solve(self, support: Whole) -> tuple[Floats, int]:
        """The optimum among the parts of ``support``, and the number of steps to it."""
        part, point = _Problem(self.log_q[support], self.shares), np.full(len(support), 1 / len(support))
        for step in range(_MAX_STEPS):
            if (gap := part.gap(point)) <= TOLERANCE:
                whole = np.zeros(len(self.log_q))
                whole[support] = point
                return whole, step
            point = part.step(point)
        raise ConvergenceError(f"the weights of the stack are {gap:.1e} nats from the best after {_MAX_STEPS} steps")

    def step(self, point: Floats) -> Floats:
        """One step of Newton's method, shortened until it descends."""
        gains = self.gains(point)
        scaled = self.ratios * (np.sqrt(self.shares) / (point @ self.ratios))
        curvature = scaled @ scaled.T  # H w = g
        ridge = _RIDGE * curvature.diagonal().max()
        # minimise f + sum(w), whose optimum lies on the simplex by itself: y'Hy / 2 - (2 g - 1)'y and the ridge
        root = np.linalg.cholesky(curvature + ridge * np.eye(len(point))).T
        target = nnls(root, np.linalg.solve(root.T, 2 * gains - 1 + ridge * point))[0]
        move, here = target - point, self.value(point)
        slope = float((1 - gains) @ move)
        for halvings in range(40):
            new = target if halvings == 0 else point + move / 2**halvings
            if self.value(new) + new.sum() - 1 <= here + 1e-4 * slope / 2**halvings + 1e-15:
                break
        return np.asarray(new / new.sum())

    def pruned(self) -> tuple[Floats, float, int]:
        """The optimum without parts that improve it by a negligible amount, later ones first; its gap; all steps."""
        best, steps = self.solve(np.arange(len(self.log_q)))
        least, gap = self.value(best), self.gap(best)
        for last in range(len(best) - 1, 0, -1):
            others = np.flatnonzero(np.where(np.arange(len(best)) == last, 0, best))
            if best[last] > 0 and len(others):
                found, more = self.solve(others)
                steps += more
                best = found if self.value(found) <= least + NEGLIGIBLE else best
        return best, gap + max(0.0, self.value(best) - least), steps


def _checked(log_q: ArrayLike, weights: ArrayLike | None, floor: float) -> tuple[Floats, Floats]:
    """Arrays in float64, the weights of the voxels as shares; what makes no problem is refused."""
    values = np.asarray(log_q, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"log_q must be (parts, voxels), got the shape {values.shape}")
    given = np.ones(values.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
    if given.shape != values.shape[1:]:
        raise ValueError(f"{values.shape[1]} voxels need as many weights, got the shape {given.shape}")
    if not (np.isfinite(given).all() and (given >= 0).all() and given.sum() > 0):
        raise ValueError("weights of voxels must be finite, at least 0, and one of them above")
    if not np.isfinite(values).all():
        part, voxel = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(f"log_q must be finite, got {values[part, voxel]} of part {part} at voxel {voxel}")
    if not 0 <= floor < 1:
        raise ValueError(f"floor = {floor}: give a weight of at least 0 and below 1")
    counted = given > 0
    return values[:, counted], given[counted] / given.sum()
