r"""The convex model that a pass hands to the inner solver: exact slope, curvature of a sample of voxels.

.. math::
    \phi(\theta) = f_S(\theta) + \langle \nabla f(\theta_t) - \nabla f_S(\theta_t), \theta \rangle + R(\theta)
    + \frac\varepsilon2 |\theta - \theta_{centre}|^2 + \frac\delta2 |\theta - \theta_t|^2

with ``f`` the mean NLL of all voxels, ``f_S`` its estimate from the sample, ``\delta`` the Levenberg damping. Its
gradient at ``theta_t`` is that of the objective. (The approximate Newton step of Shamir et al. 2014, "DANE".)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_calib.solvers.coordinates import Coordinates
from lightning_calib.solvers.sample import Sample

# Voxels in a product for the Hessian: float32 sums stay short, temporaries small.
HESSIAN_BLOCK = 2048


@dataclass(frozen=True)
class Regularizer:
    """``R`` and the ridge of one expert: a quadratic form.

    Attributes:
        coordinates: of the calibrator.
        strength: factor of each squared entry of ``[W | b] (C, C + 1)``.
        eps: strength of the ridge.
        centre: where the ridge pulls to ``(P,)``.
    """

    coordinates: Coordinates
    strength: Tensor
    eps: float
    centre: Tensor

    @classmethod
    def build(cls, coordinates: Coordinates, lam: float, mu: float, eps: float, centre: Tensor) -> "Regularizer":
        """Strengths of the Dirichlet-style penalty."""
        num_classes = coordinates.num_classes
        strength = torch.full((num_classes, num_classes + 1), lam / (num_classes * (num_classes - 1)))
        strength = strength.double().fill_diagonal_(0)
        strength[:, -1] = mu / num_classes
        return cls(coordinates, strength, eps, centre)

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Value ``(...)`` and gradient ``(..., P)`` at coordinates ``(..., P)``."""
        matrix, offset = self.coordinates.affine(theta), theta - self.centre
        value = (self.strength * matrix.square()).sum((-2, -1)) + self.eps / 2 * offset.square().sum(-1)
        return value, self.coordinates.pullback(2 * self.strength * matrix) + self.eps * offset

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
    """

    def __init__(self, sample: Sample, mass: float, regularizer: Regularizer) -> None:
        self.coordinates, self.regularizer = regularizer.coordinates, regularizer
        self.design = torch.cat([sample.features, torch.ones_like(sample.features[:1])])  # (C + 1, k)
        self.position = sample.position.unsqueeze(0)
        self.weight = sample.weight / mass
        self.center = self.coordinates.identity()
        self.slope = torch.zeros_like(self.center)
        self.damping = 0.0

    def anchor(self, center: Tensor, gradient: Tensor, damping: float) -> None:
        """Make ``gradient``, that of the data at ``center``, the model's own there."""
        self.center, self.damping = center, damping
        self.slope = gradient - self._data(center)[1]

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """``phi`` and its gradient ``(P,)``."""
        offset = theta - self.center
        value, gradient = self._data(theta)
        extra, extra_gradient = self.regularizer.value_and_gradient(theta)
        value = value + extra + self.slope @ offset + self.damping / 2 * offset @ offset
        return float(value), gradient + extra_gradient + self.slope + self.damping * offset

    def probabilities(self, theta: Tensor) -> Tensor:
        """``q (C, k)`` of the sample."""
        return (self.coordinates.affine(theta) @ self.design).softmax(0)

    def _data(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """``f_S`` and its gradient."""
        log_probs = (self.coordinates.affine(theta) @ self.design).log_softmax(0)
        value = -(log_probs.gather(0, self.position).squeeze(0) * self.weight).sum()
        residual = log_probs.exp_()
        residual.scatter_add_(0, self.position, residual.new_full(self.position.shape, -1))
        return value, self.coordinates.pullback((residual * self.weight) @ self.design.T)


def matrix_hessian(probs: Tensor, design: Tensor, weight: Tensor) -> Tensor:
    r"""``sum_v w (diag(q) - q q^T) \otimes x x^T``, ``(C, D, C, D)`` in float64.

    Products run in float32; what they leave in directions that softmax cannot see is then taken out.

    Args:
        probs: ``q (C, k)``.
        design: ``x (D, k)``.
        weight: ``(k,)``.
    """
    num_classes, depth = probs.shape[0], design.shape[0]
    total = torch.zeros(num_classes, depth, num_classes, depth, dtype=torch.float64)
    own = total.diagonal(dim1=0, dim2=2)  # (D, D, C), a view
    size = num_classes * depth
    mixed, stride = torch.zeros(size, size, dtype=torch.float64), max(64, -(-size // 6))
    blocks = [torch.split(value.float(), HESSIAN_BLOCK, dim=-1) for value in (probs, design, weight)]
    for q, x, w in zip(*blocks, strict=True):
        outer = (q.unsqueeze(1) * x).flatten(0, 1)  # (C D, k)
        weighted = outer * w
        for part in range(0, len(outer), stride):  # the product is symmetric: one triangle of blocks is enough
            mixed[part : part + stride, part:] += weighted[part : part + stride] @ outer[part:].T
        own += (weighted @ x.T).view(num_classes, depth, depth).permute(1, 2, 0)
    total -= (mixed.triu() + mixed.triu(1).T).view(total.shape)
    total -= total.mean(0, keepdim=True)
    total -= total.mean(2, keepdim=True)
    return total


def diagonal_hessian(probs: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    """The part of :func:`matrix_hessian` that scales ``a`` and biases ``b`` see, ``(2C, 2C)``."""
    outer = torch.cat([probs * features, probs])  # (2C, k)
    total = -(outer * weight) @ outer.T
    second, first, zeroth = ((probs * features.pow(power)) @ weight for power in (2, 1, 0))
    mixed = first.diag()
    return total + torch.cat([torch.cat([second.diag(), mixed], 1), torch.cat([mixed, zeroth.diag()], 1)])
