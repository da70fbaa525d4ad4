r"""Coordinates in which a calibrator's fit is convex: a vector for each expert, in which scores are linear.

TS is fitted in ``1/T``, CMS in the effective entries of ``A``, the others in their parameters. ``affine`` maps
coordinates ``(..., P)`` to ``[W | b] (..., C, C + 1)``; ``pullback`` is its transpose and takes gradients back.
``scores`` maps ``[W | b]`` and features to scores; ``slope`` is its transpose.
"""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import ClassVar

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator, LinearCalibrator
from lightning_calib.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE
from lightning_calib.solvers.curvature import diagonal_hessian, matrix_hessian


class Coordinates:
    """Full matrices ``[W | b]`` as they are: MS, DC and CDC.

    Args:
        calibrator: the calibrator to fit.

    Attributes:
        small: whether the Hessian is small however many classes there are.
        by_rows: whether large Hessians are worth a preconditioner by rows: there are no bounds, which would ask for
            another factorisation with every change of what is at them.
        width: numbers that are kept of a voxel, ``R``.
        values: numbers of a voxel that a step works with.
        lower: bounds from below ``(P,)``, infinite where there is none.
        upper: bounds from above ``(P,)``.
    """

    small: ClassVar[bool] = False
    by_rows: ClassVar[bool] = True
    calibrator: AffineCalibrator

    def __init__(self, calibrator: AffineCalibrator) -> None:
        self.calibrator = calibrator
        self.num_classes = self.width = self.values = calibrator.num_classes
        self.num_experts = calibrator.num_experts
        self.size = self.identity().shape[-1]
        self.lower = torch.full((self.size,), -torch.inf, dtype=torch.float64)
        self.upper = torch.full((self.size,), torch.inf, dtype=torch.float64)

    def identity(self) -> Tensor:
        """Coordinates ``(P,)`` of the identity."""
        return torch.eye(self.num_classes, self.num_classes + 1, dtype=torch.float64).flatten()

    def read(self) -> Tensor:
        """Coordinates ``(E, P)`` of the calibrator as it is."""
        weight, bias = (value.detach().double().cpu() for value in self.calibrator.assemble())
        return torch.cat([weight, bias.unsqueeze(-1)], dim=-1).flatten(1)

    def write(self, theta: Tensor) -> None:
        """Give the calibrator the coordinates ``(E, P)``."""
        matrices = self.affine(theta)
        self._store(weight=matrices[..., :-1], bias=matrices[..., -1])

    def affine(self, theta: Tensor) -> Tensor:
        """``[W | b] (..., C, C + 1)`` of coordinates ``(..., P)``."""
        return torch.unflatten(theta, -1, (self.num_classes, self.num_classes + 1))

    def pullback(self, gradient: Tensor) -> Tensor:
        """Gradient in the coordinates ``(..., P)`` from that in ``[W | b] (..., C, C + 1)``."""
        return gradient.flatten(-2)

    def pullback_squares(self, curvature: Tensor) -> Tensor:
        """Second derivatives ``(P,)`` from those in ``[W | b] (C, C + 1)``, as if these did not mix."""
        return self.pullback(curvature)

    def metric(self, features: Tensor, weight: Tensor) -> Tensor:
        """Size of second derivatives ``(P,)`` where nothing is certain: what damping is measured in.

        Args:
            features: ``x (C, m)``.
            weight: ``(m,)``.
        """
        moments = torch.cat([features.square(), torch.ones_like(features[:1])]) @ weight
        return self.pullback_squares(moments.expand(self.num_classes, -1)) / self.num_classes

    def rows(self) -> Tensor:
        """Places ``(C, K)`` of the coordinates that give each class its score, for those that are ``by_rows``."""
        return torch.arange(self.size).view(self.num_classes, -1)

    def seen_by_rows(self, features: Tensor) -> Tensor:
        """What each row multiplies ``(K, m)``, of features ``x (C, m)``."""
        return torch.cat([features, torch.ones_like(features[:1])])

    def strengths(self, lam: float, mu: float) -> Tensor:
        """Factors of the squared entries of ``[W | b] (C, C + 1)`` in the penalty."""
        num_classes = self.num_classes
        strength = torch.full((num_classes, num_classes + 1), lam / (num_classes * (num_classes - 1)))
        strength = strength.double().fill_diagonal_(0)
        strength[:, -1] = mu / num_classes
        return strength

    def scores(self, matrix: Tensor, features: Tensor, out: Tensor | None = None) -> Tensor:
        """``W x + b``, ``(C, m)``.

        Args:
            matrix: ``[W | b] (C, C + 1)``.
            features: ``x (C, m)``.
            out: where to write them.
        """
        return torch.addmm(matrix[:, -1:], matrix[:, :-1], features, out=out)

    def slope(self, residual: Tensor, features: Tensor) -> Tensor:
        """Gradient in ``[W | b] (C, C + 1)`` from that in the scores ``(C, m)``."""
        return torch.cat([residual @ features.T, residual.sum(1, keepdim=True)], dim=1)

    def curvature(self, probs: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        """Second derivatives ``(P, P)`` of the weighted NLL.

        Args:
            probs: ``q (C, m)``.
            features: ``x (C, m)``.
            weight: ``(m,)``.
        """
        full = matrix_hessian(probs, torch.cat([features, torch.ones_like(features[:1])]), weight)
        half = self.pullback(full.flatten(0, 1))  # (C (C + 1), P)
        return self.pullback(torch.unflatten(half.T, 1, (self.num_classes, self.num_classes + 1)))

    @torch.no_grad()
    def _store(self, **values: Tensor) -> None:
        """Copy values into parameters of the same number of entries."""
        for name, value in values.items():
            parameter = self.calibrator.get_parameter(name)
            parameter.copy_(value.reshape(parameter.shape))


class TemperatureCoordinates(Coordinates):
    """TS in ``1/T``, within the bounds of the temperature."""

    small: ClassVar[bool] = True

    def __init__(self, calibrator: AffineCalibrator) -> None:
        super().__init__(calibrator)
        self.lower.fill_(1 / MAX_TEMPERATURE)
        self.upper.fill_(1 / MIN_TEMPERATURE)

    def identity(self) -> Tensor:
        """``1/T = 1``."""
        return torch.ones(1, dtype=torch.float64)

    def read(self) -> Tensor:
        """``1/T``, ``(1, 1)``."""
        return (-self.calibrator.get_parameter("log_temperature").detach().double().cpu()).exp().view(1, 1)

    def write(self, theta: Tensor) -> None:
        """Store ``log T``."""
        self._store(log_temperature=-theta.log())
        self.calibrator.project_()

    def affine(self, theta: Tensor) -> Tensor:
        """``[I / T | 0]``."""
        return theta.unsqueeze(-1) * torch.eye(self.num_classes, self.num_classes + 1, dtype=theta.dtype)

    def pullback(self, gradient: Tensor) -> Tensor:
        """The trace of the gradient in ``W``."""
        return gradient.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)

    def curvature(self, probs: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        """That of equal scales, ``(1, 1)``."""
        num_classes = self.num_classes
        return diagonal_hessian(probs, features, weight)[:num_classes, :num_classes].sum().view(1, 1)


class VectorCoordinates(Coordinates):
    """VS: the scales, then the biases."""

    small: ClassVar[bool] = True

    def identity(self) -> Tensor:
        """Scales 1, biases 0."""
        return torch.arange(2 * self.num_classes).lt(self.num_classes).double()

    def read(self) -> Tensor:
        """Scales and biases ``(1, 2C)``."""
        weight, bias = (value.detach().double().cpu() for value in self.calibrator.assemble())
        return torch.cat([weight.diagonal(dim1=-2, dim2=-1), bias], dim=-1)

    def write(self, theta: Tensor) -> None:
        """Store scales and biases."""
        scale, bias = theta.chunk(2, dim=-1)
        self._store(scale=scale, bias=bias)

    def affine(self, theta: Tensor) -> Tensor:
        """``[diag(a) | b]``."""
        scale, bias = theta.chunk(2, dim=-1)
        return torch.cat([scale.diag_embed(), bias.unsqueeze(-1)], dim=-1)

    def pullback(self, gradient: Tensor) -> Tensor:
        """Diagonal and last column of the gradient."""
        return torch.cat([gradient.diagonal(dim1=-2, dim2=-1), gradient[..., -1]], dim=-1)

    def curvature(self, probs: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        """``(2C, 2C)``."""
        return diagonal_hessian(probs, features, weight)


class ConstrainedCoordinates(Coordinates):
    """MS_c: the free columns, the row sum, the biases."""

    def identity(self) -> Tensor:
        """Free columns of the identity matrix, row sum 1."""
        free = torch.eye(self.num_classes, dtype=torch.float64)[:, :-1].flatten()
        return torch.cat([free, torch.ones(1), torch.zeros(self.num_classes)])

    def read(self) -> Tensor:
        """``(1, C² + 1)``."""
        names = ("free", "row_sum", "bias")
        values = [self.calibrator.get_parameter(name).detach().double().cpu().flatten() for name in names]
        return torch.cat(values).unsqueeze(0)

    def write(self, theta: Tensor) -> None:
        """Store the three parts."""
        free, row_sum, bias = self._split(theta)
        self._store(free=free, row_sum=row_sum, bias=bias)

    def affine(self, theta: Tensor) -> Tensor:
        """``[F | s - F 1 | b]``."""
        free, row_sum, bias = self._split(theta)
        last = row_sum - free.sum(-1)
        return torch.cat([free, last.unsqueeze(-1), bias.unsqueeze(-1)], dim=-1)

    def pullback(self, gradient: Tensor) -> Tensor:
        """The last column of ``W`` acts on every free one with the sign turned."""
        last = gradient[..., -2]
        free = gradient[..., :-2] - last.unsqueeze(-1)
        return torch.cat([free.flatten(-2), last.sum(-1, keepdim=True), gradient[..., -1]], dim=-1)

    def pullback_squares(self, curvature: Tensor) -> Tensor:
        """Squares lose the sign."""
        last = curvature[..., -2]
        free = curvature[..., :-2] + last.unsqueeze(-1)
        return torch.cat([free.flatten(-2), last.sum(-1, keepdim=True), curvature[..., -1]], dim=-1)

    def rows(self) -> Tensor:
        """``[F | b]``, all but the row sum."""
        free, _, bias = self._split(torch.arange(self.size))
        return torch.cat([free, bias.unsqueeze(-1)], dim=-1)

    def seen_by_rows(self, features: Tensor) -> Tensor:
        """Differences to the last feature."""
        return super().seen_by_rows(features[:-1] - features[-1:])

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``F (..., C, C-1)``, ``s (..., 1)``, ``b (..., C)``."""
        num_classes = self.num_classes
        free, row_sum, bias = torch.split(theta, [num_classes * (num_classes - 1), 1, num_classes], dim=-1)
        return torch.unflatten(free, -1, (num_classes, num_classes - 1)), row_sum, bias


def coordinates_of(calibrator: LinearCalibrator) -> Coordinates:
    """Coordinates of a linear calibrator, of the class that it names.

    Example:
        >>> from lightning_calib.calibrators import MatrixScaling
        >>> coordinates_of(MatrixScaling(3)).size
        12
    """
    if calibrator.coordinates is None:
        raise ValueError(f"newton cannot fit {calibrator.name}, which names no coordinates; use 'adam' or 'auto'")
    kind: Callable[[LinearCalibrator], Coordinates] = resolve_name(calibrator.coordinates)
    return kind(calibrator)


def set_temperature(calibrator: LinearCalibrator, temperature: float) -> None:
    """Make a linear calibrator temperature scaling: the identity's coordinates over ``T``, whatever they are.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> calibrator = build("cms_op", 2)
        >>> set_temperature(calibrator, 2.0)
        >>> calibrator(torch.tensor([[4.0, 0.0]])).exp().tolist() == torch.tensor([[2.0, 0.0]]).softmax(1).tolist()
        True
    """
    coordinates = coordinates_of(calibrator)
    theta = coordinates.identity() / temperature
    coordinates.write(theta.expand(coordinates.num_experts, -1))
