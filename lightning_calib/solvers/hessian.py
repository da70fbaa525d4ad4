"""Hessians of the sample model that can be multiplied and solved with: a dense one, and one by products only."""

from typing import Protocol

import torch
from torch import Tensor

from lightning_calib.solvers.certificate import ConvergenceError
from lightning_calib.solvers.model import SampleModel

ROUNDING = 1e-12  # relative to the largest entry: curvatures below are noise

# Few voxels leave directions nearly flat, which rounding in float32 would hide where they are all there is.
EXACT_VOXELS = 4096

CG_TOLERANCE, CG_STEPS = 0.1, 40


class Hessian(Protocol):
    """What the inner solver needs of second derivatives.

    Attributes:
        damping: added to the diagonal in products and solutions.
        accuracy: share of a gradient that solutions can be asked to reach.
    """

    damping: Tensor | float
    accuracy: float

    def product(self, vector: Tensor) -> Tensor:
        """``H v``, ``(P,)``."""

    def update(self, step: Tensor, change: Tensor) -> None:
        """Make ``H step = change``."""

    def solve(self, free: Tensor, right: Tensor) -> Tensor:
        """``v`` with ``(H v)_free = right_free`` and 0 elsewhere, ``(P,)``."""


class DenseHessian:
    """All entries, solved by a Cholesky factorisation.

    Args:
        model: the model.
        theta: where to take the derivatives.
    """

    accuracy = 0.02

    def __init__(self, model: SampleModel, theta: Tensor) -> None:
        coordinates = model.coordinates
        eye = torch.eye(coordinates.size, dtype=torch.float64)
        exact = coordinates.small or (model.complete and len(model.weight) <= EXACT_VOXELS)
        data = model.curvature(theta, torch.float64 if exact else torch.float32)
        self.matrix = data + model.regularizer.product(eye)
        self.damping: Tensor | float = 0.0

    def product(self, vector: Tensor) -> Tensor:
        """``H v``."""
        return self.matrix @ vector + self.damping * vector

    def update(self, step: Tensor, change: Tensor) -> None:
        """The update of Broyden, Fletcher, Goldfarb and Shanno."""
        image = self.matrix @ step
        if not float(step @ image) > ROUNDING * float((step @ step) * self.matrix.abs().max()):
            return  # flat along the step: the quotient below would be noise
        self.matrix -= torch.outer(image, image / (step @ image))
        self.matrix += torch.outer(change, change / (step @ change))

    def solve(self, free: Tensor, right: Tensor) -> Tensor:
        """Solve on the free coordinates; where rounding made the matrix indefinite, lift its diagonal."""
        chosen = free.nonzero().squeeze(1)
        block = self.matrix[chosen][:, chosen]
        block.diagonal().add_((self.damping * torch.ones_like(right))[chosen])
        lift = 1e-13 * block.abs().max()
        factor, failed = torch.linalg.cholesky_ex(block)
        if not bool(block.isfinite().all()):
            raise ConvergenceError("second derivatives are not finite: look for NaN and for huge values in the logits")
        while int(failed):
            block.diagonal().add_(lift)
            lift *= 10
            factor, failed = torch.linalg.cholesky_ex(block)
        solution = torch.cholesky_solve(right[chosen].unsqueeze(1), factor).squeeze(1)
        return torch.zeros_like(right).index_copy(0, chosen, solution)


class ProductHessian:
    """No entries, only products with vectors, solved by conjugate gradients with a diagonal preconditioner.

    Args:
        model: the model.
        theta: where to take the derivatives.
    """

    accuracy = 0.2

    def __init__(self, model: SampleModel, theta: Tensor) -> None:
        self.model = model
        self.design = torch.cat([model.features, torch.ones_like(model.features[:1])]).float()  # (C + 1, k)
        self.probs = model.probabilities(theta).float()
        self.weight = model.weight.float()
        spread = self.probs * (1 - self.probs) * self.weight
        data = model.coordinates.pullback_squares((spread @ self.design.square().T).double())
        self.diagonal = (data + model.regularizer.diagonal()).clamp(min=1e-12)
        self.damping: Tensor | float = 0.0
        self.updates: list[tuple[Tensor, Tensor]] = []

    def product(self, vector: Tensor) -> Tensor:
        """``H v``."""
        coordinates = self.model.coordinates
        change = coordinates.affine(vector).float() @ self.design  # (C, k)
        weighted = self.probs * change
        weighted = (weighted - self.probs * weighted.sum(0)) * self.weight
        data = coordinates.pullback((weighted @ self.design.T).double())
        total = data + self.model.regularizer.product(vector) + self.damping * vector
        for left, right in self.updates:
            total = total + left * (right @ vector)
        return total

    def update(self, step: Tensor, change: Tensor) -> None:
        """The same update, kept as two products."""
        image = self.product(step) - self.damping * step
        self.updates += [(-image, image / (step @ image)), (change, change / (step @ change))]

    def solve(self, free: Tensor, right: Tensor) -> Tensor:
        """Conjugate gradients on the free coordinates, to a tenth of the residual."""
        solution, residual = torch.zeros_like(right), right * free
        goal = CG_TOLERANCE * residual.norm()
        scaled = residual / (self.diagonal + self.damping)
        direction, level = scaled, residual @ scaled
        for _ in range(CG_STEPS):
            image = self.product(direction) * free
            curvature = direction @ image
            if not curvature > 0:
                break
            solution = solution + level / curvature * direction
            residual = residual - level / curvature * image
            if residual.norm() <= goal:
                break
            scaled = residual / (self.diagonal + self.damping)
            previous, level = level, residual @ scaled
            direction = scaled + level / previous * direction
        return solution
