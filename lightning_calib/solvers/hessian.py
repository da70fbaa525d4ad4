"""Hessians of the sample model that can be multiplied and solved with: a dense one, and one by products only."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from lightning_calib.solvers.certificate import ConvergenceError
from lightning_calib.solvers.model import SampleModel

ROUNDING = 1e-12  # relative to the largest entry: curvatures below are noise

# Few voxels leave directions nearly flat, which rounding in float32 would hide where they are all there is.
EXACT_VOXELS = 4096

CG_TOLERANCE, CG_STEPS = 0.1, 20

# Blocks of the preconditioner: voxels for each coordinate, how far they are moved to the diagonal, and entries of all
# together (128 MiB, up to 322 classes), beyond which the diagonal serves.
BLOCK_VOXELS, LIFT, TINY, BLOCK_ENTRIES = 4, 0.05, 1e-30, 2**25


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
        exact: whether to take them in float64 however many voxels there are.
    """

    accuracy = 0.02

    def __init__(self, model: SampleModel, theta: Tensor, exact: bool = False) -> None:
        coordinates = model.coordinates
        eye = torch.eye(coordinates.size, dtype=torch.float64)
        exact = exact or coordinates.small or (model.complete and len(model.weight) <= EXACT_VOXELS)
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
    """No entries, only products with vectors, solved by preconditioned conjugate gradients.

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
        blocked = model.coordinates.by_rows and model.coordinates.num_classes**3 <= BLOCK_ENTRIES
        self.blocks = RowBlocks(model, spread, self.diagonal) if blocked else None
        self.damping: Tensor | float = 0.0
        self.updates: list[tuple[Tensor, Tensor]] = []

    def product(self, vector: Tensor) -> Tensor:
        """``H v``."""
        coordinates, regularizer = self.model.coordinates, self.model.regularizer
        matrix = coordinates.affine(vector)
        change = matrix.float() @ self.design  # (C, k)
        change *= self.probs
        change -= self.probs * change.sum(0)
        change *= self.weight
        slope = (change @ self.design.T).double() + 2 * regularizer.strength * matrix
        total = coordinates.pullback(slope) + (regularizer.eps + self.damping) * vector
        for left, right in self.updates:
            total = total + left * (right @ vector)
        return total

    def update(self, step: Tensor, change: Tensor) -> None:
        """The same update, kept as two products."""
        image = self.product(step) - self.damping * step
        self.updates += [(-image, image / (step @ image)), (change, change / (step @ change))]

    def solve(self, free: Tensor, right: Tensor) -> Tensor:
        """Conjugate gradients on the free coordinates, to a tenth of the residual in the preconditioner's metric.

        Its length in the coordinates themselves would be that of the steepest of them, and stay where rounding in
        float32 leaves it.
        """
        inverse = self._inverse(free)
        solution, residual = torch.zeros_like(right), right * free
        direction = scaled = inverse(residual)
        level = start = residual @ scaled
        for _ in range(CG_STEPS):
            image = self.product(direction) * free
            curvature = direction @ image
            if not curvature > 0:
                break
            solution = solution + level / curvature * direction
            residual = residual - level / curvature * image
            scaled = inverse(residual)
            previous, level = level, residual @ scaled
            if level <= CG_TOLERANCE**2 * start:
                break
            direction = scaled + level / previous * direction
        return solution

    def _inverse(self, free: Tensor) -> Callable[[Tensor], Tensor]:
        """What comes near to dividing a vector by the Hessian of the free coordinates."""
        if self.blocks is not None:
            divided = self.blocks.inverse(self.damping)
            return lambda vector: divided(vector * free) * free
        diagonal = self.diagonal + self.damping
        return lambda vector: vector / diagonal * free


class RowBlocks:
    """The part of a Hessian within the coordinates of each class: what conjugate gradients are preconditioned with.

    A class's block is that of the few voxels that matter most to it, scaled to the diagonal of all voxels. What moves
    all classes together has no curvature but the penalty's, and is divided by that alone.

    Args:
        model: the model.
        spread: what each voxel counts for each class ``(C, k)``.
        diagonal: of the Hessian ``(P,)``, positive.
    """

    def __init__(self, model: SampleModel, spread: Tensor, diagonal: Tensor) -> None:
        coordinates = model.coordinates
        self.diagonal, self.rows = diagonal, coordinates.rows()
        self.common = model.regularizer.diagonal()
        design = coordinates.seen_by_rows(model.features).float()  # (K, k)
        best = spread.topk(min(BLOCK_VOXELS * len(design), design.shape[1]))
        blocks = torch.empty(len(self.rows), len(design), len(design))
        for place, (weight, chosen) in enumerate(zip(*best, strict=True)):
            seen = design[:, chosen]
            torch.mm(seen * weight, seen.T, out=blocks[place])
        scale = blocks.diagonal(dim1=1, dim2=2).clamp(min=TINY).rsqrt()
        wanted = diagonal[self.rows].sqrt().float()
        blocks *= (1 - LIFT) * (scale * wanted).unsqueeze(1) * (scale * wanted).unsqueeze(2)
        self.blocks = blocks

    def inverse(self, damping: Tensor | float) -> Callable[[Tensor], Tensor]:
        """What divides a vector ``(P,)`` by the blocks, with the whole diagonal and damping on theirs."""
        diagonal, common = self.diagonal + damping, (self.common + damping)[self.rows].sum(0)
        blocks = self.blocks.clone()
        blocks.diagonal(dim1=1, dim2=2).copy_(diagonal[self.rows])
        factors, failed = torch.linalg.cholesky_ex(blocks)
        sound = failed == 0  # rounding: the diagonal alone will do for the others
        rows, factors = self.rows[sound], factors[sound]

        def divided(vector: Tensor) -> Tensor:
            result = vector / diagonal
            result[rows] = torch.cholesky_solve(vector[rows].float().unsqueeze(-1), factors).squeeze(-1).double()
            result[self.rows] += vector[self.rows].sum(0) / common
            return result

        return divided
