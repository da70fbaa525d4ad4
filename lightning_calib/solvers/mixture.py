"""Fits of ensemble temperature scaling: four numbers under a simplex constraint, by SLSQP on streamed sums."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from lightning_calib.calibrators import EnsembleTemperatureScaling, TemperatureScaling
from lightning_calib.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE
from lightning_calib.functional.devices import sums_device
from lightning_calib.solvers.base import Batch, Solver, SolverName
from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.newton import NewtonSolver
from lightning_calib.solvers.sample import Sample
from lightning_calib.solvers.stream import Walk

Vector = NDArray[np.float64]

IDENTITY = np.array([0.0, 1.0, 0.0, 0.0])  # log T and the weights of tempered, original and uniform

SAMPLE_VOXELS = 2**14  # over all predicted classes; more would cost memory and save no pass

# A component of weight 0 may exceed the mixture by this factor (e^60) in the gradient: SLSQP squares it.
MAX_LOG_RATIO = 60.0

# Weights that the search starts from. At 0 the slope of a weight can be astronomic (one voxel that is surely wrong is
# enough), which tells SLSQP nothing about how far to go.
_INSIDE = np.array([0.98, 0.01, 0.01])
_AWAY = 0.003  # share of the centre that keeps a later start off the edges

_BOUNDS = [(math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]


def mixture_terms(features: Tensor, position: Tensor, log_temperature: float, weights: Tensor) -> Tensor:
    """``-log q_y`` of each voxel and its derivatives in ``(log T, w_1, w_2, w_3)``, float64 ``(5, m)``.

    Args:
        features: logits ``(C, m)`` with the largest at 0.
        position: place of the label ``(m,)``.
        log_temperature: ``log T``.
        weights: ``w (3,)``, float64, where float64 sums are taken.
    """
    tempered = features / math.exp(log_temperature)
    log_probs = tempered.log_softmax(0)
    own = position.unsqueeze(0)
    uniform = torch.full_like(log_probs[0], -math.log(len(log_probs)))
    parts = torch.stack([log_probs.gather(0, own)[0], features.log_softmax(0).gather(0, own)[0], uniform])
    parts = parts.to(weights.device).double()  # (3, m)
    log_q = (parts + weights.log().unsqueeze(1)).logsumexp(0)
    ratios = (parts - log_q).clamp(max=MAX_LOG_RATIO).exp()  # d log q / d w
    # d log S(z / T)_y / d log T = mean of z / T under S(z / T), less that of the label
    mean = (log_probs.exp() * tempered).sum(0) - tempered.gather(0, own)[0]
    slope = weights[0] * ratios[0] * mean.to(weights)
    return -torch.cat([torch.stack([log_q, slope]), ratios])


class MixtureObjective(ABC):
    """Mean NLL of ETS with its gradient; remembers the best point."""

    def __init__(self) -> None:
        self.passes = 0
        self.best, self.best_value = IDENTITY, math.inf

    @abstractmethod
    def mean(self, log_temperature: float, weights: Tensor) -> Tensor:
        """Mean over the voxels of :func:`mixture_terms`, ``(5,)``."""

    def __call__(self, point: Vector) -> tuple[float, Vector]:
        """Value and gradient at ``(log T, w / sum(w))``; remembers the best point.

        SLSQP meets the constraint at its end only: without the division, a point off the simplex would look better
        than it is.
        """
        positive = point[1:].clip(min=0)
        size = positive.sum()
        weights = torch.from_numpy(positive / size if size > 0 else _INSIDE)
        mean = self.mean(float(point[0]), weights).numpy()
        self.passes += 1
        if not np.isfinite(mean).all():
            raise ConvergenceError(f"the objective is {mean[0]} at log T, w = {point}; look for NaN in the logits")
        if mean[0] < self.best_value:
            self.best, self.best_value = np.concatenate([point[:1], weights.numpy()]), float(mean[0])
        gradient = mean[1:].astype(np.float64)
        gradient[1:] = (gradient[1:] - gradient[1:] @ weights.numpy()) / max(size, 1e-3)
        return float(mean[0]), gradient


class DataObjective(MixtureObjective):
    """The objective over all voxels; each new point costs a pass over the data.

    Args:
        num_classes: number of classes.
        batches: logits, targets and case ids, as often as asked for.
        ignore_index: label of voxels that do not count.
        collective: the processes that share the data.
    """

    def __init__(
        self, num_classes: int, batches: Iterable[Batch], ignore_index: int | None, collective: Collective = ALONE
    ) -> None:
        super().__init__()
        self.batches, self.collective = batches, collective
        self.walk = Walk(TemperatureScaling(num_classes), ignore_index)
        self.num_voxels = 0

    def mean(self, log_temperature: float, weights: Tensor) -> Tensor:
        """Mean over the voxels of all processes."""
        total = torch.zeros(5, dtype=torch.float64)
        voxels = 0
        for logits, target, *_ in self.batches:
            case_ids = ["batch"] * (1 if logits.ndim == 2 else len(logits))
            total, weights = (values.to(sums_device(logits.device)) for values in (total, weights))
            for chunk in self.walk(logits, target, case_ids):
                total += mixture_terms(chunk.features, chunk.position, log_temperature, weights).sum(1)
                voxels += len(chunk.target)
        both = self.collective.sum(torch.cat([total.cpu(), torch.tensor([float(voxels)], dtype=torch.float64)]))
        self.num_voxels = int(both[-1])
        return both[:-1] / both[-1]


class SampleObjective(MixtureObjective):
    """The objective over a weighted sample, the same in every process; costs no pass."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample

    def mean(self, log_temperature: float, weights: Tensor) -> Tensor:
        """Weighted mean over the sample."""
        terms = mixture_terms(self.sample.features, self.sample.position, log_temperature, weights)
        return terms @ self.sample.weight / self.sample.weight.sum()


class MixtureSolver(Solver):
    """SLSQP for ETS; it decides itself when to read the data, so that only :meth:`solve` feeds it.

    A sample of the voxels says where to begin: SLSQP descends on it from the identity and from the optimum of TS, and
    the better end is where the descent on all voxels starts.

    Args:
        calibrator: fitted in place.
        ignore_index: label of voxels that do not count.
        collective: the processes that share the data.
        max_iterations: of SLSQP.
    """

    name: ClassVar[SolverName] = "slsqp"
    calibrator: EnsembleTemperatureScaling

    def __init__(
        self,
        calibrator: EnsembleTemperatureScaling,
        ignore_index: int | None = None,
        collective: Collective = ALONE,
        max_iterations: int = 100,
    ) -> None:
        super().__init__(calibrator, ignore_index, collective)
        self.max_iterations = max_iterations

    @property
    def passes(self) -> int:
        """All passes at once, at the end."""
        return 0 if self.certificate is None else self.certificate.passes

    def progress(self) -> dict[str, float]:
        """Objective and passes."""
        objective = math.nan if self.certificate is None else self.certificate.objective
        return {"objective": objective, "passes": float(self.passes)}

    @torch.no_grad()
    def solve(self, batches: Iterable[Batch], val: Iterable[Batch] | None = None) -> Certificate:
        """Fit to the end."""
        num_classes, ignore_index, collective = self.calibrator.num_classes, self.ignore_index, self.collective
        temperature = TemperatureScaling(num_classes)
        size = SAMPLE_VOXELS // num_classes
        newton = NewtonSolver(
            temperature, ignore_index=ignore_index, min_voxels=0, sample_size=size, collective=collective
        )
        scaling = newton.solve(batches)
        scaled = np.concatenate([[float(temperature.log_temperature)], IDENTITY[1:]])
        guess = SampleObjective(Sample.merge(newton.samples))
        for start in (scaled, IDENTITY):
            _descend(guess, start, _INSIDE, self.max_iterations)
        objective = DataObjective(num_classes, batches, ignore_index, collective)
        objective(scaled)  # no worse than TS
        end = _descend(objective, guess.best, (1 - _AWAY) * guess.best[1:] + _AWAY / 3, self.max_iterations)
        self.calibrator.log_temperature.fill_(float(objective.best[0]))
        self.calibrator.weights.copy_(torch.from_numpy(objective.best[1:]))
        self.calibrator.project_()
        self.certificate = _certify(objective, scaling, end)
        return self.certificate


def _descend(objective: MixtureObjective, start: Vector, weights: Vector, max_iterations: int) -> str:
    """Run SLSQP with the start's temperature and these weights; the best point is remembered. Returns how it ended."""
    objective(start)
    with threadpool_limits(1, "blas"):  # SLSQP's tiny systems are solved to other bits by other numbers of threads
        result = minimize(
            objective,
            np.concatenate([start[:1], weights]),
            jac=True,
            method="SLSQP",
            bounds=_BOUNDS,
            constraints=[LinearConstraint([[0, 1, 1, 1]], 1, 1)],
            options={"maxiter": max_iterations, "ftol": 1e-11},
        )
    # Mode 8: no step decreases the objective any more, which at the rounding of float32 sums is an end like others.
    return "decrease" if result.status in (0, 8) else str(result.message)


def _certify(objective: DataObjective, scaling: Certificate, end: str) -> Certificate:
    """Facts of the fit; raises where it did not converge."""
    weights, gradient = objective.best[1:], objective(objective.best)[1]
    # What a move of weight to one component would change; weights at 0 have no way down.
    free = np.where(weights > 0, np.abs(gradient[1:]), np.maximum(-gradient[1:], 0))
    certificate = Certificate(
        solver="slsqp",
        converged=end == "decrease",
        reason=end,
        passes=objective.passes + scaling.passes,
        objective=objective.best_value,
        identity_objective=scaling.identity_objective,
        nll=objective.best_value,
        gradient_norm=float(max(abs(gradient[0]), free.max())),
        num_voxels=objective.num_voxels,
        expert_voxels=[objective.num_voxels],
        empty_cells=scaling.empty_cells,
        missing_classes=scaling.missing_classes,
        warnings=scaling.warnings,
    )
    if not certificate.converged:
        raise ConvergenceError(f"SLSQP did not converge: {certificate.reason}; raise max_iterations", certificate)
    return certificate
