"""Coordinates of conditional matrix scaling."""

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator, ConeScaling
from lightning_calib.functional.cones import cone_matrix, inverse_cone_matrix
from lightning_calib.solvers.coordinates import Coordinates


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
