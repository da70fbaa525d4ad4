"""What fitted calibrators really do to real outputs: shifts, argmax changes and inversions, counted (Table 1)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.functional.cones import Cone
from lightning_calib.functional.experts import winning_class
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.studies.base import Pass, Pipelines, Study
from lightning_calib.studies.parameters import CLASSES, CountRow, parameter_counts

NAME = "properties"
CASES = 8  # cases that are measured unless told otherwise
SHIFT = 10.0  # standard deviation of the random shifts
TOLERANCE = 1e-6  # change of a log-probability under an exact shift that is no violation
_GRID = 2.0**-8  # logits and shifts are multiples of it: their sums are exact in float32 below 65536


@dataclass(frozen=True)
class Measured:
    """What was counted over some cases; the counts of parts add up.

    Attributes:
        voxels: voxels that were looked at.
        shift_change: largest change of a log-probability when every voxel's logits are shifted at random.
        argmax_changes: voxels whose most probable class is not that of the pooled logits.
        inversions: neighbours in the order of the pooled logits whose order is turned round.
    """

    voxels: int = 0
    shift_change: float = 0.0
    argmax_changes: int = 0
    inversions: int = 0

    def __add__(self, other: "Measured") -> "Measured":
        """Both parts together."""
        return Measured(
            self.voxels + other.voxels,
            max(self.shift_change, other.shift_change),
            self.argmax_changes + other.argmax_changes,
            self.inversions + other.inversions,
        )

    @property
    def invariant(self) -> bool:
        """Whether shifts changed nothing beyond rounding."""
        return self.shift_change <= TOLERANCE

    @property
    def preserved(self) -> Cone | None:
        """What was kept in every voxel."""
        if self.argmax_changes:
            return None
        return "argmax" if self.inversions else "order"

    def violations(self, translation_invariant: bool, preserves: Cone | None) -> list[str]:
        """What was promised and is not so.

        Example:
            >>> Measured(voxels=10, argmax_changes=2).violations(True, "argmax")
            ['argmax: 2 of 10 voxels changed their class']
        """
        broken = []
        if translation_invariant and not self.invariant:
            broken.append(
                f"translation invariance: a shift changed a log-probability by {self.shift_change:.3g} (> {TOLERANCE})"
            )
        if preserves is not None and self.argmax_changes:
            broken.append(f"argmax: {self.argmax_changes:,} of {self.voxels:,} voxels changed their class")
        if preserves == "order" and self.inversions:
            broken.append(f"order: {self.inversions:,} neighbouring classes in {self.voxels:,} voxels are inverted")
        return broken


@torch.inference_mode()
def measure(calibrator: Calibrator, logits: Tensor, seed: int = 0, shift: float = SHIFT) -> Measured:
    """Measure a calibrator on pooled logits, shifts included.

    Every voxel gets a shift of its own. Logits and shifts are rounded to a grid of 1/256 first, so that shifting is
    exact, and whatever changes is the calibrator's doing; ranking is measured on the logits as they are.

    Args:
        calibrator: what to measure.
        logits: pooled logits ``(B, C, *S)``.
        seed: seed of the shifts.
        shift: their standard deviation.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> measure(build("ts", 3), torch.randn(1, 3, 50)).preserved
        'order'
    """
    log_probs = calibrator(logits)
    order = logits.argsort(dim=1, descending=True, stable=True)
    ranked = log_probs.gather(1, order)
    on_grid = _rounded(logits)
    moved = on_grid + _rounded(shift * _normal(logits, seed))
    return Measured(
        voxels=logits.numel() // logits.shape[1],
        shift_change=float((calibrator(moved) - calibrator(on_grid)).abs().max()),
        argmax_changes=int((winning_class(log_probs) != winning_class(logits)).sum()),
        inversions=int((ranked[:, 1:] > ranked[:, :-1]).sum()),
    )


def _normal(logits: Tensor, seed: int) -> Tensor:
    """One random number a voxel ``(B, 1, *S)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((logits.shape[0], 1, *logits.shape[2:]), generator=generator).to(logits)


def _rounded(values: Tensor) -> Tensor:
    return (values / _GRID).round() * _GRID


@dataclass(frozen=True)
class PropertyRow:
    """Declared and measured properties of one fitted calibrator (``properties.csv``)."""

    pipeline: str
    repeat: int
    optimized: int
    identifiable: int
    declared_invariant: str
    declared_preserves: str
    voxels: int
    shift_change: float
    argmax_changes: int
    inversions: int
    measured_invariant: str
    measured_preserves: str
    broken: str


def property_row(pipeline: str, repeat: int, calibrator: Calibrator, measured: Measured) -> PropertyRow:
    """Declared beside measured."""
    broken = measured.violations(calibrator.translation_invariant, calibrator.preserves)
    return PropertyRow(
        pipeline=pipeline,
        repeat=repeat,
        optimized=calibrator.num_optimized,
        identifiable=calibrator.num_identifiable,
        declared_invariant=_yes(calibrator.translation_invariant),
        declared_preserves=calibrator.preserves or "nothing",
        **asdict(measured),
        measured_invariant=_yes(measured.invariant),
        measured_preserves=measured.preserved or "nothing",
        broken="; ".join(broken),
    )


def measure_cases(calibrator: Calibrator, cases: StoredCases, case_ids: Sequence[str]) -> Measured:
    """Measure a calibrator on stored cases; the shifts of a case do not depend on the others."""
    parts = (measure(calibrator, cases.read(case_id)[0][None], seed) for seed, case_id in enumerate(case_ids))
    return sum(parts, Measured())


def run_properties(study: Study, pipelines: Pipelines | None = None, cases: int = CASES) -> dict[str, Any]:
    """Measure the properties of every fitted calibrator on test cases of its repeat.

    Args:
        study: where to read and write.
        pipelines: which to measure; None for all of the run.
        cases: test cases a repeat, evenly spread.

    Returns:
        ``study.json``, with the declared properties that do not hold.
    """
    names = study.names(pipelines)
    jobs = study.passes(names, [column.name for column in fields(PropertyRow)], cases)
    found = study.tabulate(jobs, partial(property_rows, study), PropertyRow)
    rows = sorted(found, key=lambda row: (names.index(row.pipeline), row.repeat))
    study.save("properties.csv", rows, PropertyRow)
    broken = [{"pipeline": row.pipeline, "repeat": row.repeat, "broken": row.broken} for row in rows if row.broken]
    classes = study.results.dataset["num_classes"]
    study.save("parameters.csv", parameter_counts([*CLASSES, classes]), CountRow)
    return study.write(
        {"pipelines": list(names), "num_classes": classes, "cases": cases, "shift": SHIFT, "broken": broken}
    )


def property_rows(study: Study, job: Pass) -> list[PropertyRow]:
    """Declared and measured properties of the pipelines of a pass."""
    cases, rows = study.cases(job.pooling), []
    for name in job.pipelines:
        calibrator = study.calibrator(job.repeat, name)
        rows.append(property_row(name, job.repeat, calibrator, measure_cases(calibrator, cases, job.case_ids)))
    return rows


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
