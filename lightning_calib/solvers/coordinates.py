r"""Coordinates in which a calibrator's fit is convex: a vector for each expert, linear in ``[W | b]``.

TS is fitted in ``1/T``, CMS in the effective entries of ``A``, the others in their parameters. ``affine`` maps
coordinates ``(..., P)`` to ``[W | b] (..., C, C + 1)``; ``pullback`` is its transpose and takes gradients back.
"""

from pkgutil import resolve_name
from typing import ClassVar

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator, ConeScaling
from lightning_calib.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE
from lightning_calib.functional.cones import cone_matrix, inverse_cone_matrix


class Coordinates:
    """Full matrices ``[W | b]`` as they are: MS, DC and CDC.

    Args:
        calibrator: the calibrator to fit.

    Attributes:
        diagonal: whether ``W`` is always diagonal, which makes the Hessian small.
        lower: bounds from below ``(P,)``, infinite where there is none.
        upper: bounds from above ``(P,)``.
    """

    diagonal: ClassVar[bool] = False

    def __init__(self, calibrator: AffineCalibrator) -> None:
        self.calibrator = calibrator
        self.num_classes = calibrator.num_classes
        self.num_experts = calibrator.assemble()[0].shape[0]
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

    @torch.no_grad()
    def _store(self, **values: Tensor) -> None:
        """Copy values into parameters of the same number of entries."""
        for name, value in values.items():
            parameter = self.calibrator.get_parameter(name)
            parameter.copy_(value.reshape(parameter.shape))


class TemperatureCoordinates(Coordinates):
    """TS in ``1/T``, within the bounds of the temperature."""

    diagonal: ClassVar[bool] = True

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


class VectorCoordinates(Coordinates):
    """VS: the scales, then the biases."""

    diagonal: ClassVar[bool] = True

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

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``F (..., C, C-1)``, ``s (..., 1)``, ``b (..., C)``."""
        num_classes = self.num_classes
        free, row_sum, bias = torch.split(theta, [num_classes * (num_classes - 1), 1, num_classes], dim=-1)
        return torch.unflatten(free, -1, (num_classes, num_classes - 1)), row_sum, bias


class ConeCoordinates(Coordinates):
    r"""CMS: the entries of ``[W' | b']`` that are not fixed at 0, with ``[W | b] = G^{-1} [W' G | b']``.

    The first row of ``W'`` and ``b'_1`` are free; ``A`` and the gaps of the bias are at least 0.
    """

    def __init__(self, calibrator: AffineCalibrator) -> None:
        assert isinstance(calibrator, ConeScaling)
        if calibrator.parametrization != "clamp":
            raise ValueError(
                f"newton fits {calibrator.name} with parametrization='clamp', got "
                f"{calibrator.parametrization!r}, whose weights cannot be 0; build it with 'clamp' or fit with adam"
            )
        num_classes = calibrator.num_classes
        self.to_gaps = cone_matrix(num_classes, calibrator.cone)
        self.from_gaps = inverse_cone_matrix(num_classes, calibrator.cone)
        used = torch.ones(num_classes, num_classes + 1, dtype=torch.bool)
        used[1:, 0] = False
        self.used = used.flatten().nonzero().squeeze(1)  # places of the coordinates in [W' | b']
        super().__init__(calibrator)
        self.lower[num_classes + 1 :] = 0

    def identity(self) -> Tensor:
        """``W' = I``, no bias."""
        return torch.eye(self.num_classes, self.num_classes + 1, dtype=torch.float64).flatten()[self.used]

    def read(self) -> Tensor:
        """``(E, C² + 1)``: ``a, r, b'_1``, then ``A`` with the bias gap behind each row."""
        names = ("first_row", "bias_first", "inner", "bias_gaps")
        parts = [self.calibrator.get_parameter(name).detach().double().cpu() for name in names]
        below = torch.cat([parts[2], parts[3].unsqueeze(-1)], dim=-1).flatten(1).clamp(min=0)
        return torch.cat([parts[0], parts[1].unsqueeze(-1), below], dim=-1)

    def write(self, theta: Tensor) -> None:
        """Store the four parameters."""
        first, below = torch.split(theta, [self.num_classes + 1, self.size - self.num_classes - 1], dim=-1)
        rows = torch.unflatten(below, -1, (self.num_classes - 1, self.num_classes))
        self._store(first_row=first[..., :-1], bias_first=first[..., -1], inner=rows[..., :-1], bias_gaps=rows[..., -1])

    def affine(self, theta: Tensor) -> Tensor:
        """``G^{-1} [W' G | b']``."""
        shape = (*theta.shape[:-1], self.num_classes * (self.num_classes + 1))
        conjugate = theta.new_zeros(shape).index_copy_(-1, self.used, theta)
        conjugate = torch.unflatten(conjugate, -1, (self.num_classes, self.num_classes + 1))
        inner = torch.cat([conjugate[..., :-1] @ self.to_gaps, conjugate[..., -1:]], dim=-1)
        return self.from_gaps @ inner

    def pullback(self, gradient: Tensor) -> Tensor:
        """Transpose of :meth:`affine`."""
        return self._back(gradient, self.from_gaps, self.to_gaps)

    def pullback_squares(self, curvature: Tensor) -> Tensor:
        """The matrices hold -1, 0 and 1: their squares are their magnitudes."""
        return self._back(curvature, self.from_gaps.abs(), self.to_gaps.abs())

    def _back(self, values: Tensor, from_gaps: Tensor, to_gaps: Tensor) -> Tensor:
        """Products with the transposed matrices, at the places that are used."""
        rows = from_gaps.T @ values
        conjugate = torch.cat([rows[..., :-1] @ to_gaps.T, rows[..., -1:]], dim=-1)
        return conjugate.flatten(-2)[..., self.used]


def coordinates_of(calibrator: AffineCalibrator) -> Coordinates:
    """Coordinates of an affine calibrator, of the class that it names.

    Example:
        >>> from lightning_calib.calibrators import MatrixScaling
        >>> coordinates_of(MatrixScaling(3)).size
        12
    """
    if calibrator.coordinates is None:
        raise ValueError(f"newton cannot fit {calibrator.name}, which names no coordinates; use 'adam' or 'auto'")
    kind: type[Coordinates] = resolve_name(calibrator.coordinates)
    return kind(calibrator)


def set_temperature(calibrator: AffineCalibrator, temperature: float) -> None:
    """Make an affine calibrator temperature scaling: the identity's coordinates over ``T``, whatever they are.

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
