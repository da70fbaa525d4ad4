"""The objective of a temperature field on a sample, and L-BFGS on it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from threadpoolctl import threadpool_limits
from torch import Tensor

from lightning_calib.calibrators.field import TemperatureField
from lightning_calib.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE
from lightning_calib.solvers.collective import Collective
from lightning_calib.solvers.sample import Sample

Vector = NDArray[np.float64]

# Steps that L-BFGS remembers.
MEMORY = 20


class FieldModel:
    r"""``\sum_v w_v (-\log q_{y_v}) / N + (\delta / 2) |\theta|^2`` over the voxels of a sample.

    Steps are taken in coordinates in which every input has mean 0 and deviation 1 on the sample: with the weight
    ``V = W s`` and the bias ``c = b + W m`` of the first layer, ``W x + b = V (x - m) / s + c``. There L-BFGS needs a
    third of the steps. The regularisation stays that of ``W`` and ``b``.

    Args:
        calibrator: whose parameters are moved.
        sample: rows of scores and inputs ``(C + R, k)``.
        voxels: ``N``.
        decay: ``\delta``.

    Attributes:
        uniform: whether the temperature was 1 everywhere, so that no start can lose what is known.
    """

    def __init__(self, calibrator: TemperatureField, sample: Sample, voxels: int, decay: float) -> None:
        self.calibrator, self.decay = calibrator, decay
        self.parameters = list(calibrator.parameters())
        places = {id(value): place for place, value in enumerate(self.parameters)}
        self.layer = [places[id(value)] for value in calibrator.first_layer()]
        device = self.parameters[0].device
        rows, classes = sample.features.T.to(device).contiguous(), calibrator.num_classes
        inputs, share = rows[:, classes:], (sample.weight / sample.weight.sum()).to(rows).unsqueeze(1)
        with torch.no_grad():
            self.uniform = bool(((calibrator.temperature_at(inputs) - 1).abs() < 1e-5).all())
        self.mean = (inputs * share).sum(0)
        deviation = ((inputs - self.mean).square() * share).sum(0).sqrt()
        self.scale = torch.where(deviation > 0, deviation, 1.0)
        self.scores = rows[:, :classes].contiguous()
        self.inputs = (inputs - self.mean) / self.scale
        self.mean, self.scale = self.mean.double().cpu(), self.scale.double().cpu()
        self.position, self.weight = sample.position.unsqueeze(1).to(device), (sample.weight / voxels).to(device)

    def nll(self, temperature: float | Tensor) -> Tensor:
        """Weighted sum of ``-log q_y`` at a temperature, or at one for each voxel ``(k, 1)``."""
        log_probs = (self.scores / temperature).log_softmax(1)
        return -(log_probs.gather(1, self.position).squeeze(1).double() * self.weight).sum()

    def best_temperature(self) -> float:
        """The best single temperature."""
        bounds = (math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE))
        found = minimize_scalar(lambda value: float(self.nll(math.exp(value))), bounds=bounds, method="bounded")
        return math.exp(found.x)

    def descend(self, steps: int, collective: Collective) -> float:
        """Take at most so many steps of L-BFGS from where the calibrator is; the objective where they end."""
        self._write(self._standardized(self._read()))
        with threadpool_limits(1, "blas"):  # other numbers of threads round otherwise
            options = {"maxiter": steps, "maxcor": MEMORY}
            found = minimize(self, self._read().numpy(), jac=True, method="L-BFGS-B", options=options)
        # The same bits in every process, whatever its processor rounds.
        point = collective.sum(torch.from_numpy(found.x)) / collective.size
        self._write(self._standardized(point, back=True))
        return float(found.fun)

    def __call__(self, point: Vector) -> tuple[float, Vector]:
        """Objective and gradient at standardised parameters; a device is waited for once."""
        self._write(torch.from_numpy(point.copy()))
        with torch.enable_grad():
            plain = self._standardized(self._joined(self.parameters), back=True)
            nll = self.nll(self.calibrator.temperature_at(self.inputs).unsqueeze(1))
            value = nll.cpu() + self.decay / 2 * plain.square().sum()
            gradient = torch.autograd.grad(value, self.parameters)
        return float(value.detach()), self._joined(gradient).numpy()

    def _standardized(self, point: Tensor, back: bool = False) -> Tensor:
        """Parameters ``(P,)`` with ``V`` and ``c`` in place of ``W`` and ``b``; or back."""
        parts, (weight, bias) = self._split(point), self.layer
        rows = parts[weight].flatten(1)
        if back:
            rows = rows / self.scale
            parts[bias] = parts[bias] - rows @ self.mean
        else:
            parts[bias] = parts[bias] + rows @ self.mean
            rows = rows * self.scale
        parts[weight] = rows
        return self._joined(parts)

    def _split(self, point: Tensor) -> list[Tensor]:
        """Parameters in their shapes."""
        parts = torch.split(point, [value.numel() for value in self.parameters])
        return [part.view(value.shape) for part, value in zip(parts, self.parameters, strict=True)]

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Parts as one vector ``(P,)``, float64."""
        return torch.cat([part.double().cpu().flatten() for part in parts])

    def _read(self) -> Tensor:
        """The calibrator's parameters ``(P,)``."""
        return self._joined([value.detach() for value in self.parameters])

    @torch.no_grad()
    def _write(self, point: Tensor) -> None:
        """Give them to the calibrator."""
        for value, part in zip(self.parameters, self._split(point), strict=True):
            value.copy_(part)
