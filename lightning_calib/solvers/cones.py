"""Coordinates of conditional matrix scaling."""

from typing import ClassVar

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator, ConeScaling
from lightning_calib.functional.cones import Cone, cone_matrix, inverse_cone_matrix
from lightning_calib.solvers.coordinates import Coordinates


class ConeCoordinates(Coordinates):
    r"""CMS: the entries of ``[W' | b']`` that are not fixed at 0, with ``[W | b] = G^{-1} [W' G | b']``.

    The first row of ``W'`` and ``b'_1`` are free; ``A`` and the gaps of the bias are at least 0.
    """

    by_rows: ClassVar[bool] = False

    def __init__(self, calibrator: AffineCalibrator) -> None:
        assert isinstance(calibrator, ConeScaling)
        if calibrator.parametrization != "clamp":
            raise ValueError(
                f"newton fits {calibrator.name} with parametrization='clamp', got "
                f"{calibrator.parametrization!r}, whose weights cannot be 0; build it with 'clamp' or fit with adam"
            )
        num_classes = calibrator.num_classes
        self.cone = calibrator.cone
        width = num_classes + 1
        places = [place for place in range(num_classes * width) if place < width or place % width]
        self.used = torch.tensor(places)  # of the coordinates in [W' | b']: below the first row, no first column
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
        inner = torch.cat([to_gaps_transposed(conjugate[..., :-1], self.cone), conjugate[..., -1:]], dim=-1)
        return from_gaps(inner.mT, self.cone).mT

    def pullback(self, gradient: Tensor) -> Tensor:
        """Transpose of :meth:`affine`."""
        rows = from_gaps_transposed(gradient.mT, self.cone).mT
        conjugate = torch.cat([to_gaps(rows[..., :-1], self.cone), rows[..., -1:]], dim=-1)
        return conjugate.flatten(-2)[..., self.used]

    def pullback_squares(self, curvature: Tensor) -> Tensor:
        """The matrices hold -1, 0 and 1: their squares are their magnitudes."""
        to, back = (make(self.num_classes, self.cone).abs() for make in (cone_matrix, inverse_cone_matrix))
        rows = back.T @ curvature
        conjugate = torch.cat([rows[..., :-1] @ to.T, rows[..., -1:]], dim=-1)
        return conjugate.flatten(-2)[..., self.used]


def to_gaps(values: Tensor, cone: Cone) -> Tensor:
    """``G x`` for each row ``x (..., C)``, without the matrix.

    Example:
        >>> to_gaps(torch.tensor([5.0, 3.0, 1.0]), "argmax"), to_gaps(torch.tensor([5.0, 3.0, 1.0]), "order")
        (tensor([5., 2., 4.]), tensor([5., 2., 2.]))
    """
    first = values[..., :1]
    above = first if cone == "argmax" else values[..., :-1]
    return torch.cat([first, above - values[..., 1:]], dim=-1)


def to_gaps_transposed(values: Tensor, cone: Cone) -> Tensor:
    """``G^T x`` for each row ``x (..., C)``."""
    below = values[..., 1:]
    if cone == "argmax":
        return torch.cat([values.sum(-1, keepdim=True), -below], dim=-1)
    shifted = torch.cat([values[..., :1] + below[..., :1], below[..., 1:], torch.zeros_like(below[..., :1])], dim=-1)
    return torch.cat([shifted[..., :1], shifted[..., 1:] - below], dim=-1)


def from_gaps(values: Tensor, cone: Cone) -> Tensor:
    """``G^{-1} x`` for each row ``x (..., C)``."""
    first, below = values[..., :1], values[..., 1:]
    return torch.cat([first, first - (below if cone == "argmax" else below.cumsum(-1))], dim=-1)


def from_gaps_transposed(values: Tensor, cone: Cone) -> Tensor:
    """``G^{-T} x`` for each row ``x (..., C)``."""
    below = values[..., 1:]
    summed = below if cone == "argmax" else below.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([values.sum(-1, keepdim=True), -summed], dim=-1)
