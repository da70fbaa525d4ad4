"""Calibrators with one temperature for all voxels: identity, TS and ETS."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.affine import AffineCalibrator
from lightning_calib.calibrators.base import Calibrator, FittedBy, log_softmax
from lightning_calib.functional.bounds import within
from lightning_calib.functional.cones import Cone
from lightning_calib.functional.simplex import log_mixture, nearest_on_simplex, on_simplex

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
_LOG_BOUNDS = (math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE))


class Identity(Calibrator):
    """No calibration: ``log S(z)``, the baseline of every comparison.

    Example:
        >>> Identity(2)(torch.zeros(1, 2)).exp()
        tensor([[0.5000, 0.5000]])
    """

    name: ClassVar[str] = "identity"
    description = "no calibration"
    preserves: Cone | None = "order"
    monotone = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """``log S(z)``."""
        return log_softmax(logits)


class TemperatureScaling(AffineCalibrator):
    """One temperature: ``S(z / T)`` (Guo et al. 2017).

    ``T = exp(log_temperature)``, kept within [1e-3, 1e3].

    Example:
        >>> calibrator = TemperatureScaling(2)
        >>> with torch.no_grad():
        ...     _ = calibrator.log_temperature.fill_(math.log(2.0))
        >>> calibrator(torch.tensor([[2 * math.log(3.0), 0.0]])).detach().exp()
        tensor([[0.7500, 0.2500]])
    """

    name: ClassVar[str] = "ts"
    description = "temperature scaling"
    coordinates = "lightning_calib.solvers.coordinates:TemperatureCoordinates"
    preserves: Cone | None = "order"
    monotone = True

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    @property
    def temperature(self) -> Tensor:
        """``T``, within its bounds."""
        return within(self.log_temperature, *_LOG_BOUNDS).exp()

    def calibrate(self, logits: Tensor) -> Tensor:
        """``log S(z / T)``."""
        return (logits / self.temperature).log_softmax(dim=1)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """``W = I / T``, ``b = 0``."""
        temperature = self.temperature
        weight = torch.eye(self.num_classes, dtype=temperature.dtype, device=temperature.device) / temperature
        return weight.unsqueeze(0), weight.new_zeros(1, self.num_classes)

    @torch.no_grad()
    def project_(self) -> None:
        """Keep the stored value within the bounds, too."""
        self.log_temperature.clamp_(*_LOG_BOUNDS)


class EnsembleTemperatureScaling(Calibrator):
    r"""Mixture of tempered, original and uniform probabilities (Zhang et al. 2020).

    .. math:: q = w_1 S(z / T) + w_2 S(z) + w_3 \frac1C, \qquad w \ge 0, \; \sum_k w_k = 1

    The weights are stored as they are: negative ones count as 0 and the rest is normalised, so that a weight can
    reach 0 and leave it again.

    Example:
        >>> calibrator = EnsembleTemperatureScaling(4)
        >>> with torch.no_grad():
        ...     _ = calibrator.weights.copy_(torch.tensor([0.0, 0.0, 1.0]))
        >>> calibrator(torch.tensor([[9.0, 0.0, 0.0, 0.0]])).detach().exp()
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    name: ClassVar[str] = "ets"
    description = "ensemble temperature scaling: a mixture of tempered, original and uniform probabilities"
    preserves: Cone | None = "order"
    solver: ClassVar[FittedBy] = "slsqp"

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.weights = nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))

    @property
    def temperature(self) -> Tensor:
        """``T``, within its bounds."""
        return within(self.log_temperature, *_LOG_BOUNDS).exp()

    def mixture(self) -> Tensor:
        """The weights ``(3,)`` on the simplex; without a positive one, all on the tempered part."""
        return on_simplex(self.weights)

    def calibrate(self, logits: Tensor) -> Tensor:
        """Log of the mixture."""
        uniform = torch.full_like(logits, -math.log(self.num_classes))
        parts = [(logits / self.temperature).log_softmax(dim=1), log_softmax(logits), uniform]
        return log_mixture(torch.stack(parts), self.mixture())

    @torch.no_grad()
    def project_(self) -> None:
        """Put the weights on the simplex, at the nearest point of it, and the temperature into its bounds."""
        self.log_temperature.clamp_(*_LOG_BOUNDS)
        self.weights.copy_(nearest_on_simplex(self.weights))

    @property
    def num_identifiable(self) -> int:
        """Three: the weights sum to one."""
        return 3
