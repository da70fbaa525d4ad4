"""Affine calibrators shared by all voxels: VS, MS, MS_c and DC."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.base import log_softmax
from lightning_calib.calibrators.linear import LinearCalibrator, LinearInput
from lightning_calib.functional.penalty import Reduction, dirichlet_penalty


class AffineCalibrator(LinearCalibrator):
    """Calibrator of the form ``S(W x + b)``, with one ``W, b`` or one for each expert.

    A subclass says what ``x`` is (:meth:`inputs`) and how its parameters make ``W`` and ``b``
    (:meth:`assemble`); both are what the solvers and the penalty work on.
    """

    def assemble(self) -> tuple[Tensor, Tensor]:
        """``W (E, C, C)`` and ``b (E, C)``, differentiable in the parameters."""
        raise NotImplementedError

    @property
    def num_experts(self) -> int:
        """Number of matrices."""
        return self.assemble()[0].shape[0]

    def calibrate(self, logits: Tensor) -> Tensor:
        """``log S(W x + b)`` for a single expert."""
        weight, bias = self.assemble()
        features = self.inputs(logits).features
        return (weight[0].to(logits) @ features + bias[0].to(logits).unsqueeze(-1)).log_softmax(dim=1)

    def penalty(self, lam: float, mu: float, reduction: Reduction = "mean") -> Tensor:
        """:func:`dirichlet_penalty` of the assembled matrices."""
        return dirichlet_penalty(*self.assemble(), lam, mu, reduction)


class VectorScaling(AffineCalibrator):
    """A scale and a bias for each class: ``S(diag(a) z + b)`` (Guo et al. 2017). Not translation invariant.

    Example:
        >>> VectorScaling(2)(torch.zeros(1, 2)).exp()
        tensor([[0.5000, 0.5000]], grad_fn=<ExpBackward0>)
    """

    name: ClassVar[str] = "vs"
    description = "vector scaling: a scale and a bias for each class"
    coordinates = "lightning_calib.solvers.coordinates:VectorCoordinates"
    translation_invariant = False

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.scale = nn.Parameter(torch.ones(num_classes))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def calibrate(self, logits: Tensor) -> Tensor:
        """``log S(diag(a) z + b)`` without the matrix."""
        return (logits * self.scale.unsqueeze(-1) + self.bias.unsqueeze(-1)).log_softmax(dim=1)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """``W = diag(a)``."""
        return torch.diag(self.scale).unsqueeze(0), self.bias.unsqueeze(0)

    @property
    def num_identifiable(self) -> int:
        """A common bias cancels in the softmax."""
        return 2 * self.num_classes - 1


class MatrixScaling(AffineCalibrator):
    """A full matrix: ``S(W z + b)`` (Guo et al. 2017). Not translation invariant.

    Adding ``c`` to all logits adds ``c W 1``: for large ``c`` the output becomes one-hot at the largest row sum,
    whatever the prediction was.

    Example:
        >>> MatrixScaling(2)(torch.zeros(1, 2)).exp()
        tensor([[0.5000, 0.5000]], grad_fn=<ExpBackward0>)
    """

    name: ClassVar[str] = "ms"
    description = "matrix scaling: an affine map of the scores"
    coordinates = "lightning_calib.solvers.coordinates:Coordinates"
    translation_invariant = False

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.weight = nn.Parameter(torch.eye(num_classes))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def assemble(self) -> tuple[Tensor, Tensor]:
        """``W`` and ``b`` as they are stored."""
        return self.weight.unsqueeze(0), self.bias.unsqueeze(0)

    @property
    def num_identifiable(self) -> int:
        """A common row of ``W`` and a common bias cancel in the softmax."""
        return self.num_classes**2 - 1


class ConstrainedMatrixScaling(AffineCalibrator):
    """Matrix scaling whose rows have one common sum ``s``, which makes it translation invariant.

    The first ``C - 1`` columns are free; the last one completes each row to ``s``.

    Example:
        >>> ConstrainedMatrixScaling(3).assemble()[0].sum(-1)
        tensor([[1., 1., 1.]], grad_fn=<SumBackward1>)
    """

    name: ClassVar[str] = "ms_c"
    description = "matrix scaling with equal row sums, which makes it translation invariant"
    coordinates = "lightning_calib.solvers.coordinates:ConstrainedCoordinates"

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.free = nn.Parameter(torch.eye(num_classes)[:, :-1].contiguous())
        self.row_sum = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def assemble(self) -> tuple[Tensor, Tensor]:
        """``W`` with its last column filled in."""
        last = self.row_sum - self.free.sum(dim=1, keepdim=True)
        return torch.cat([self.free, last], dim=1).unsqueeze(0), self.bias.unsqueeze(0)

    @property
    def num_identifiable(self) -> int:
        """A common free row, the common bias and with them the row sum are gauge."""
        return self.num_classes * (self.num_classes - 1)


class DirichletCalibration(MatrixScaling):
    """Matrix scaling of log-probabilities: ``S(W log S(z) + b)`` (Kull et al. 2019).

    Example:
        >>> DirichletCalibration(2)(torch.zeros(1, 2)).exp()
        tensor([[0.5000, 0.5000]], grad_fn=<ExpBackward0>)
    """

    name: ClassVar[str] = "dc"
    description = "Dirichlet calibration: an affine map of the log-probabilities"
    translation_invariant = True

    def inputs(self, logits: Tensor, features: Tensor | None = None) -> LinearInput:
        """``x = log S(z)``."""
        return LinearInput(log_softmax(logits))
