r"""The convex model that a pass hands to the inner solver: exact slope, curvature of a sample of voxels.

.. math::
    \phi(\theta) = f_S(\theta) + \langle \nabla f(\theta_t) - \nabla f_S(\theta_t), \theta \rangle + R(\theta)
    + \frac\varepsilon2 |\theta - \theta_{centre}|^2 + \frac\delta2 |\theta - \theta_t|^2

with ``f`` the mean NLL of all voxels, ``f_S`` its estimate from the sample, ``\delta`` the Levenberg damping. Its
gradient at ``theta_t`` is that of the objective. (The approximate Newton step of Shamir et al. 2014, "DANE".)
"""

from copy import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lightning_calib.solvers.coordinates import Coordinates
from lightning_calib.solvers.sample import Sample


@dataclass(frozen=True)
class Regularizer:
    """``R`` and the ridge of one expert: a quadratic form.

    Attributes:
        coordinates: of the calibrator.
        strength: factor of each squared entry of ``[W | b] (C, C + 1)``, or of what else scores are linear in.
        eps: strength of the ridge.
        centre: where the ridge pulls to ``(P,)``.
        tilt: a slope that is added ``(P,)``; none by default.
    """

    coordinates: Coordinates
    strength: Tensor
    eps: float
    centre: Tensor
    tilt: Tensor | None = None

    @classmethod
    def build(
        cls, coordinates: Coordinates, lam: float, mu: float, eps: float, centre: Tensor, tilt: Tensor | None = None
    ) -> "Regularizer":
        """Strengths of the Dirichlet-style penalty."""
        return cls(coordinates, coordinates.strengths(lam, mu), eps, centre, tilt)

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Value ``(...)`` and gradient ``(..., P)`` at coordinates ``(..., P)``."""
        matrix, offset = self.coordinates.affine(theta), theta - self.centre
        axes = tuple(range(-self.strength.ndim, 0))
        value = (self.strength * matrix.square()).sum(axes) + self.eps / 2 * offset.square().sum(-1)
        gradient = self.coordinates.pullback(2 * self.strength * matrix) + self.eps * offset
        if self.tilt is None:
            return value, gradient
        return value + (self.tilt * offset).sum(-1), gradient + self.tilt

    def product(self, vector: Tensor) -> Tensor:
        """Hessian times coordinates ``(..., P)``."""
        return self.coordinates.pullback(2 * self.strength * self.coordinates.affine(vector)) + self.eps * vector

    def diagonal(self) -> Tensor:
        """Second derivatives in single coordinates ``(P,)``."""
        return self.coordinates.pullback_squares(2 * self.strength) + self.eps


class SampleModel:
    """The model of one expert.

    Args:
        sample: voxels of the expert.
        mass: sum of the weights of all voxels, of all experts.
        regularizer: ``R`` and ridge.
        complete: whether the model is the objective itself, of all voxels, and can be solved as exactly.
    """

    def __init__(self, sample: Sample, mass: float, regularizer: Regularizer, complete: bool = False) -> None:
        self.complete = complete
        self.coordinates, self.regularizer = regularizer.coordinates, regularizer
        self.features = sample.features
        self.position = sample.position.unsqueeze(0)
        self.weight = sample.weight / mass
        self.center = self.coordinates.identity()
        self.slope = torch.zeros_like(self.center)
        self.metric = self.coordinates.metric(self.features, self.weight)
        self.damping = torch.zeros_like(self.center)
        self.shared: dict[bytes, Tensor] | None = None

    def under(self, regularizer: Regularizer) -> Self:
        """The same voxels under other strengths; both then keep the second derivatives at the first point asked for."""
        if self.shared is None:
            self.shared = {}
        twin = copy(self)
        twin.regularizer = regularizer
        return twin

    def curvature(self, theta: Tensor, precision: torch.dtype) -> Tensor:
        """Second derivatives of the data ``(P, P)``, by products in a precision."""
        place = theta.numpy().tobytes()
        if self.shared is not None and place in self.shared:
            return self.shared[place]
        probs = self.probabilities(theta).to(precision)
        found = self.coordinates.curvature(probs, self.features, self.weight)
        if self.shared is not None and not self.shared:
            self.shared[place] = found
        return found

    def anchor(self, center: Tensor, gradient: Tensor, damping: float) -> None:
        """Make ``gradient``, that of the data at ``center``, the model's own there."""
        self.center, self.damping = center, damping * self.metric
        self.slope = gradient - self._data(center)[1]

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """``phi`` and its gradient ``(P,)``."""
        offset = theta - self.center
        value, gradient = self._data(theta)
        extra, extra_gradient = self.regularizer.value_and_gradient(theta)
        value = value + extra + self.slope @ offset + (self.damping * offset) @ offset / 2
        return float(value), gradient + extra_gradient + self.slope + self.damping * offset

    def probabilities(self, theta: Tensor) -> Tensor:
        """``q (C, k)`` of the sample."""
        return self._scores(theta).softmax(0)

    def _data(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """``f_S`` and its gradient."""
        log_probs = self._scores(theta).log_softmax(0)
        value = -(log_probs.gather(0, self.position).squeeze(0) * self.weight).sum()
        residual = log_probs.exp_()
        residual.scatter_add_(0, self.position, residual.new_full(self.position.shape, -1))
        return value, self.coordinates.pullback(self.coordinates.slope(residual * self.weight, self.features))

    def _scores(self, theta: Tensor) -> Tensor:
        """Scores ``(C, k)`` of the sample."""
        return self.coordinates.scores(self.coordinates.affine(theta), self.features)
