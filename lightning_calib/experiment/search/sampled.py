"""What trials of a search see of large data: coresets of ``cal`` and ``val``, corrected at one point by all voxels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lightning_calib.calibrators import Calibrator, LinearCalibrator
from lightning_calib.experiment.search.space import Values, penalised_by
from lightning_calib.kit.tensors import write_tensors
from lightning_calib.solvers import ALONE, NewtonSolver, SolverName, choose_solver
from lightning_calib.solvers.coordinates import coordinates_of
from lightning_calib.solvers.coreset import NAME, Coreset, is_large
from lightning_calib.solvers.stream import KeptWalk
from lightning_calib.solvers.survey import Counts, Survey

# What trials see: a coreset where the data are larger than one, or always all voxels.
SearchOn = Literal["coreset", "exact"]

# Gradient at which a trial ends: its NLL is compared with others, no more. Models of all voxels of a coreset reach
# the smaller one as well.
ROUGH, TOLERANCE = 1e-5, 1e-6

FILE = "coreset.safetensors"
_START, _COUNTS = "start.", "counts."


def takes_coreset(search: SearchOn, voxels: int, fresh: Callable[[], Calibrator], solver: SolverName) -> bool:
    """Whether trials see a coreset: newton searches strengths on more voxels than a coreset has.

    Args:
        search: what was asked for.
        voxels: of ``cal``, ignored ones included.
        fresh: makes the calibrator; not called where the rest decides.
        solver: as it was asked for.
    """
    if search == "exact" or not is_large(voxels):
        return False
    calibrator = fresh()
    fits = isinstance(calibrator, LinearCalibrator) and "newton" in (
        solver,
        solver == "auto" and choose_solver(calibrator),
    )
    return fits and bool(penalised_by(calibrator))


@dataclass(frozen=True)
class SampledVoxels:
    """Coresets, and where all voxels were looked at.

    Attributes:
        cal: coreset of ``cal``.
        val: coreset of ``val``.
        start: parameters near the optimum for the default strengths.
        counts: of all voxels of ``cal``.
        tilt: what the gradient of ``cal`` lacks at the start ``(E, P)``.
        offset: what the NLL of ``val`` lacks there.
        slope: what its gradient lacks there ``(E, P)``.
    """

    cal: Coreset
    val: Coreset
    start: dict[str, Tensor]
    counts: Counts
    tilt: Tensor
    offset: float
    slope: Tensor

    @classmethod
    def read(cls, folder: Path | None) -> Self | None:
        """What another process has found; None where there is none, a damaged file, or one of another release."""
        try:
            return None if folder is None else cls._of(load_file(folder / FILE))
        except (OSError, SafetensorError, KeyError):
            return None

    @classmethod
    def _of(cls, found: dict[str, Tensor]) -> Self:
        """From the tensors of a file."""
        cal, val = (
            Coreset(*(found[f"{part}.{name}"] for name in ("logits", "target", "weight"))) for part in ("cal", "val")
        )
        start = {name.removeprefix(_START): value for name, value in found.items() if name.startswith(_START)}
        cells, loss, repeated, mass = (found[f"{_COUNTS}{name}"] for name in Counts.__annotations__)
        counts = Counts(cells, loss, int(repeated), float(mass))
        return cls(cal, val, start, counts, found["tilt"], float(found["offset"]), found["slope"])

    def write(self, folder: Path) -> None:
        """Keep it for other processes."""
        folder.mkdir(parents=True, exist_ok=True)
        coresets = {
            f"{part}.{name}": value for part in ("cal", "val") for name, value in vars(getattr(self, part)).items()
        }
        start = {f"{_START}{name}": value for name, value in self.start.items()}
        counts = {f"{_COUNTS}{name}": _tensor(value) for name, value in vars(self.counts).items()}
        points = {"tilt": self.tilt, "offset": _tensor(self.offset), "slope": self.slope}
        write_tensors(folder / FILE, {**coresets, **start, **counts, **points})


def _tensor(value: Tensor | float) -> Tensor:
    """As safetensors hold it: numbers in float64, which counts them exactly."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


@dataclass(frozen=True)
class SampledTrials:
    """Trials on coresets, all in memory; each starts at the coreset's optimum for the default strengths.

    Args:
        fresh: makes the calibrator at the identity, where fits run.
        voxels: what they see.
    """

    fresh: Callable[[], LinearCalibrator]
    voxels: SampledVoxels
    done: dict[str, tuple[NewtonSolver, float]] = field(default_factory=dict)

    @cached_property
    def walks(self) -> tuple[KeptWalk, KeptWalk]:
        """Prepared voxels of ``cal`` and ``val``."""
        return KeptWalk(self.fresh()), KeptWalk(self.fresh())

    @cached_property
    def known(self) -> NewtonSolver:
        """Counts of the coreset, and the experts' models."""
        return informed(self._solver({}), self.voxels.cal)

    def all_known(self, solver: NewtonSolver) -> NewtonSolver:
        """The same of all voxels, for fits that go on where a trial ended."""
        return solver.told(self.voxels.counts, self.known.samples)

    def __call__(self, values: Values) -> tuple[NewtonSolver, float]:
        """The fit of some strengths, and the NLL of ``val`` that it is expected to have."""
        key = repr(sorted(values.items()))
        if key not in self.done:
            solver = self._solver(values, known=self.known)
            solver.solve([self.voxels.cal.batch])
            self.done[key] = solver, self._val_nll(solver.calibrator)
        return self.done[key]

    def _val_nll(self, calibrator: LinearCalibrator) -> float:
        """NLL of ``val``: that of its coreset, corrected by value and slope at the start."""
        way = coordinates_of(calibrator).read() - self.known.coordinates.read()
        some, _ = self.voxels.val.sums(calibrator, self.walks[1])
        return some + self.voxels.offset + float((self.voxels.slope * way).sum())

    def _solver(self, values: Values, **options: Any) -> NewtonSolver:
        calibrator = self.fresh()
        calibrator.load_state_dict(self.voxels.start)
        return on_coreset(calibrator, self.voxels.cal, self.walks[0], **values, tilt=self.voxels.tilt, **options)


def on_coreset(calibrator: LinearCalibrator, coreset: Coreset, walk: KeptWalk, **options: Any) -> NewtonSolver:
    """The solver of a fit on a coreset."""
    tolerance = ROUGH if calibrator.num_experts == 1 else TOLERANCE
    return NewtonSolver(calibrator, walk=walk, case_weights=coreset.case_weights, tolerance=tolerance, **options)


def informed(solver: NewtonSolver, coreset: Coreset) -> NewtonSolver:
    """Counts and models for fits on a coreset: of several experts all of its voxels, of one a sample."""
    own = solver.coordinates
    if own.num_experts == 1:
        return solver.learn([coreset.batch])
    survey = Survey(own.num_experts, own.num_classes, 0, weights=solver.weights)
    for chunk in solver.walk(coreset.logits[None], coreset.target[None], [NAME]):
        survey.add(chunk)
    return solver.told(survey.finish(ALONE)[0], coreset.samples(solver.calibrator, solver.walk))
