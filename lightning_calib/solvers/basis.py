"""Coordinates of calibrators with a basis: their coefficients."""

from typing import ClassVar

from torch import Tensor

from lightning_calib.calibrators import BasisCalibrator
from lightning_calib.solvers.coordinates import Coordinates
from lightning_calib.solvers.curvature import basis_hessian


class BasisCoordinates(Coordinates):
    """The coefficients within their bounds. There is no matrix: ``affine`` and ``pullback`` change nothing.

    Args:
        calibrator: the calibrator to fit.
    """

    small: ClassVar[bool] = True
    calibrator: BasisCalibrator  # type: ignore[assignment]  # all that needs a matrix is replaced

    def __init__(self, calibrator: BasisCalibrator) -> None:
        self.calibrator = calibrator
        super().__init__(calibrator)  # type: ignore[arg-type]
        self.width = self.num_classes + len(calibrator.feature_names)
        self.values = self.size * self.num_classes
        self.lower, self.upper = (value.double().cpu() for value in calibrator.bounds())

    def identity(self) -> Tensor:
        """Coefficients of the identity."""
        return self.calibrator.identity().double().cpu()

    def read(self) -> Tensor:
        """Coefficients ``(E, J)`` within their bounds."""
        stored = self.calibrator.coefficients.detach().double().cpu()
        low, high = (value.double().cpu() for value in self.calibrator.bounds())
        return stored.clamp(low, high)

    def write(self, theta: Tensor) -> None:
        """Store the coefficients."""
        self._store(coefficients=theta)

    def affine(self, theta: Tensor) -> Tensor:
        """The coefficients."""
        return theta

    def pullback(self, gradient: Tensor) -> Tensor:
        """The gradient."""
        return gradient

    def metric(self, features: Tensor, weight: Tensor) -> Tensor:
        """The same for all coefficients."""
        return weight.sum().expand(self.size)

    def strengths(self, lam: float, mu: float) -> Tensor:
        """The calibrator's own; ``lam`` and ``mu`` are of matrices."""
        return self.calibrator.shrinkage().double().cpu()

    def scores(self, matrix: Tensor, features: Tensor, out: Tensor | None = None) -> Tensor:
        """Scores ``(C, m)`` of coefficients ``(J,)`` and what the calibrator sees ``(R, m)``."""
        change = matrix - self.calibrator.starting_point(matrix)
        found = self.calibrator.scores(change.view(1, -1, 1), *self.calibrator.split(features.unsqueeze(0)))[0]
        return found if out is None else out.copy_(found)

    def slope(self, residual: Tensor, features: Tensor) -> Tensor:
        """Gradient in the coefficients."""
        return self.calibrator.slope(residual.unsqueeze(0), *self.calibrator.split(features.unsqueeze(0)))

    def curvature(self, probs: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        """``(J, J)``."""
        values = self.calibrator.basis(*self.calibrator.split(features.unsqueeze(0)))[0]
        return basis_hessian(probs, values, weight)
