"""Cross-fitting over groups: every candidate fitted without each fold, along a path of strengths, and judged on it."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_calib.calibrators import Identity, LinearCalibrator, PipelineName, TemperatureScaling, build
from lightning_calib.experiment.selection.folds import Fold, FoldedVoxels
from lightning_calib.functional.pooling import Pooling
from lightning_calib.solvers import ConvergenceError, NewtonSolver
from lightning_calib.solvers.coordinates import set_temperature
from lightning_calib.solvers.objective import EPS
from lightning_calib.solvers.stream import KeptWalk
from lightning_calib.solvers.sums import voxel_losses

Losses = NDArray[np.float32]

# Strengths of the ridge, over the number of groups; the first is a simpler candidate.
STRENGTHS = (math.inf, 100.0, 10.0, 1.0, 0.1, 0.01, 0.001)
TEMPERATURE_STRENGTHS = (math.inf, 10.0, 1.0, 0.1, 0.0)

TOLERANCE, MAX_PASSES = 1e-5, 60


@dataclass(frozen=True)
class CrossFitted:
    """What a candidate's fits say about voxels that they had not seen.

    Attributes:
        pipeline: its name.
        strengths: of the ridge, falling; ``(0.0,)`` where nothing is fitted.
        losses: ``-log q_y`` of the sampled voxels ``(S, n)``, fold behind fold.
        passes: passes over the sample that the fits took.
    """

    pipeline: str
    strengths: tuple[float, ...]
    losses: Losses
    passes: int = 0


@dataclass
class CrossFitter:
    """Cross-fits candidates on one sample of voxels.

    Full-batch fits start at the result of the fold before for the same strength, in the first fold at that of the
    stronger penalty. The centre of the ridge is temperature scaling, fitted on the same voxels; that of temperature
    scaling is the identity. At infinite strength a candidate *is* its centre, and no fit is made.

    Args:
        voxels: the sample.
        num_classes: ``C``.
        strengths: path of all candidates but temperature scaling.
        temperature_strengths: its path; it ends at 0.
    """

    voxels: FoldedVoxels
    num_classes: int
    strengths: tuple[float, ...] = STRENGTHS
    temperature_strengths: tuple[float, ...] = TEMPERATURE_STRENGTHS
    _folds: dict[tuple[Pooling, tuple[str, ...]], list[Fold]] = field(default_factory=dict)
    _temperatures: dict[Pooling, tuple[CrossFitted, list[float]]] = field(default_factory=dict)

    def __call__(self, pipeline: str) -> CrossFitted:
        """Held-out losses of a candidate."""
        name = PipelineName.parse(pipeline)
        if name.calibrator == "identity":
            return CrossFitted(pipeline, (0.0,), self._identity(name.pooling)[None])
        if name.calibrator == "ts":
            return self._temperature(name.pooling)[0]
        centre, temperatures = self._temperature(name.pooling)
        features = build(name.calibrator, self.num_classes).feature_names
        path = FoldPath(name, self.folds(name.pooling, features), self.voxels.weights, self.num_classes)
        return path(self.strengths, centre.losses[-1], temperatures)

    def folds(self, pooling: Pooling, features: tuple[str, ...] = ()) -> list[Fold]:
        """The sample under a pooling, with some features."""
        if (pooling, features) not in self._folds:
            self._folds[pooling, features] = self.voxels.of(pooling, features)
        return self._folds[pooling, features]

    def temperatures(self, pooling: Pooling) -> list[float]:
        """Temperature without each fold."""
        return self._temperature(pooling)[1]

    def _identity(self, pooling: Pooling) -> Losses:
        identity = Identity(self.num_classes)
        found = [-identity(f.logits).gather(1, f.target[:, None].long())[0, 0] for f in self.folds(pooling)]
        return torch.cat(found).numpy()

    def _temperature(self, pooling: Pooling) -> tuple[CrossFitted, list[float]]:
        if pooling not in self._temperatures:
            name = PipelineName("ts", pooling)
            path = FoldPath(name, self.folds(pooling), self.voxels.weights, self.num_classes)
            found = path(self.temperature_strengths, self._identity(pooling), [1.0] * len(self.voxels.folds))
            self._temperatures[pooling] = found, [temperature_of(calibrator) for calibrator in path.last]
        return self._temperatures[pooling]


class FoldPath:
    """Fits of one pipeline without each fold, along a path.

    Args:
        name: the pipeline.
        folds: the voxels.
        weights: what they count, by fold.
        num_classes: ``C``.

    Attributes:
        last: the calibrator of the weakest penalty, for each fold.
    """

    def __init__(self, name: PipelineName, folds: list[Fold], weights: dict[str, Tensor], num_classes: int) -> None:
        self.name, self.folds, self.weights, self.num_classes = name, folds, weights, num_classes
        self.walk = KeptWalk(self._fresh())
        self.starts: dict[float, dict[str, Tensor]] = {}
        self.last: list[LinearCalibrator] = []
        self.passes = 0

    def __call__(self, strengths: tuple[float, ...], at_infinity: Losses, temperatures: list[float]) -> CrossFitted:
        """Held-out losses along the path; strengths at which a fit did not converge, and weaker ones, are left out.

        Args:
            strengths: falling, infinity first.
            at_infinity: losses of the centre ``(n,)``.
            temperatures: of the centre without each fold.
        """
        pairs = zip(self.folds, temperatures, strict=True)
        rows = [self._without(left_out, strengths[1:], temperature) for left_out, temperature in pairs]
        held_out = [np.concatenate(parts) for parts in zip(*_common(rows), strict=True)]
        losses = np.stack([at_infinity, *held_out])
        return CrossFitted(str(self.name), strengths[: len(losses)], losses, self.passes)

    def _without(self, left_out: Fold, strengths: tuple[float, ...], temperature: float) -> list[Losses]:
        """Losses ``(n,)`` of a fold for each finite strength."""
        batches = [fold.batch for fold in self.folds if fold.name != left_out.name]
        groups = sum(fold.num_groups for fold in self.folds if fold.name != left_out.name)
        centre, calibrator = self._fresh(), self._fresh()
        set_temperature(centre, temperature)
        calibrator.load_state_dict(centre.state_dict())
        solver, rows = None, []
        for strength in strengths:
            calibrator.load_state_dict(self.starts.get(strength, calibrator.state_dict()))
            solver = fold_solver(calibrator, centre, strength / groups, self.walk, self.weights, solver)
            try:
                self.passes += solver.solve(batches).passes
            except ConvergenceError:
                break
            self.starts[strength] = {key: value.clone() for key, value in calibrator.state_dict().items()}
            rows.append(voxel_losses(calibrator, self.walk, left_out.batch).numpy())
        self.last.append(calibrator)
        return rows

    def _fresh(self) -> LinearCalibrator:
        calibrator = build(self.name.calibrator, self.num_classes)
        if not isinstance(calibrator, LinearCalibrator) or calibrator.solver != "newton":
            raise ValueError(f"{self.name} cannot be cross-fitted: it is not fitted by newton; leave it out")
        return calibrator


def fold_solver(
    calibrator: LinearCalibrator,
    centre: LinearCalibrator,
    ridge: float,
    walk: KeptWalk,
    weights: dict[str, Tensor],
    known: NewtonSolver | None,
) -> NewtonSolver:
    """The solver of a fit on folds: accurate enough to judge by, from where the calibrator is."""
    return NewtonSolver(
        calibrator,
        lam=0.0,
        mu=0.0,
        eps=max(ridge, EPS),
        max_passes=MAX_PASSES,
        tolerance=TOLERANCE,
        walk=walk,
        case_weights=weights,
        centre=centre,
        known=known,
    )


def temperature_of(calibrator: LinearCalibrator) -> float:
    """``T`` of temperature scaling."""
    assert isinstance(calibrator, TemperatureScaling)
    return float(calibrator.temperature.detach())


def _common(rows: list[list[Losses]]) -> list[list[Losses]]:
    """Only the strengths that every fold has."""
    count = min(len(row) for row in rows)
    return [row[:count] for row in rows]
