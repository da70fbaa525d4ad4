"""The audit of a calibrator: does it keep what it declares, shifts, classes and their order counted on real outputs?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_calib.calibrators import Calibrator, load_calibrator
from lightning_calib.calibrators.base import seen_by
from lightning_calib.functional.cones import Cone
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import sha256
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import Outside, StoredCases
from lightning_calib.report.inputs import spread

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
def measure(
    calibrator: Calibrator, logits: Tensor, seed: int = 0, shift: float = SHIFT, features: Tensor | None = None
) -> Measured:
    """Measure a calibrator on pooled logits, shifts included.

    Every voxel gets a shift of its own. Logits and shifts are rounded to a grid of 1/256 first, so that shifting is
    exact, and whatever changes is the calibrator's doing; ranking is measured on the logits as they are.

    Args:
        calibrator: what to measure.
        logits: pooled logits ``(B, C, *S)``.
        seed: seed of the shifts.
        shift: their standard deviation.
        features: ``(B, F, *S)`` for calibrators that look at them; shifts do not change them.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> measure(build("ts", 3), torch.randn(1, 3, 50)).preserved
        'order'
    """
    seen = seen_by(calibrator, features)
    log_probs = calibrator(logits, *seen)
    order = logits.argsort(dim=1, descending=True, stable=True)
    ranked = log_probs.gather(1, order)
    on_grid = _rounded(logits)
    moved = on_grid + _rounded(shift * _normal(logits, seed))
    return Measured(
        voxels=logits.numel() // logits.shape[1],
        shift_change=float((calibrator(moved, *seen) - calibrator(on_grid, *seen)).abs().max()),
        argmax_changes=int((winning_class(log_probs) != winning_class(logits)).sum()),
        inversions=int((ranked[:, 1:] > ranked[:, :-1]).sum()),
    )


def _normal(logits: Tensor, seed: int) -> Tensor:
    """One random number a voxel ``(B, 1, *S)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((logits.shape[0], 1, *logits.shape[2:]), generator=generator).to(logits)


def _rounded(values: Tensor) -> Tensor:
    return (values / _GRID).round() * _GRID


def measure_cases(calibrator: Calibrator, cases: StoredCases, case_ids: Sequence[str]) -> Measured:
    """Measure a calibrator on stored cases; the shifts of a case do not depend on the others."""
    total = Measured()
    for seed, case_id in enumerate(case_ids):
        features = cases.feature_batch(case_id, calibrator.feature_names)
        total = total + measure(calibrator, cases.pooled(case_id)[None], seed, features=features)
    return total


def audit(
    calibrator: Path, store: OutputStore, pooling: Pooling, cases: int | None = None, outside: Outside = "exclude"
) -> dict[str, Any]:
    """Measure translation invariance and decision preservation of a calibrator file; JSON-able.

    Args:
        calibrator: the file.
        store: frozen outputs to measure on.
        pooling: how members are pooled.
        cases: number of cases, evenly spread; by default all.
        outside: what voxels count as that were never predicted.
    """
    module, chosen = load_calibrator(calibrator).eval(), spread(store.case_ids, cases)
    if module.num_classes != store.manifest.num_classes:
        raise ValueError(
            f"{calibrator} is for {module.num_classes} classes, {store.path} has {store.manifest.num_classes}"
        )
    measured = measure_cases(module, StoredCases(store, pooling, outside), chosen)
    broken = measured.violations(module.translation_invariant, module.preserves)
    found = {"translation_invariant": measured.invariant, "preserves": measured.preserved}
    return {
        "calibrator": {"name": module.name, "file": calibrator.name, "sha256": sha256(calibrator)},
        "outputs": {"dataset": store.manifest.dataset, "manifest_sha256": sha256(store.path / MANIFEST)},
        "pooling": pooling,
        "cases": len(chosen),
        "declared": {"translation_invariant": module.translation_invariant, "preserves": module.preserves},
        "measured": {**asdict(measured), "random_shift_std": SHIFT, **found},
        "broken": broken,
        "passed": not broken,
        "versions": {"lightning-calib": version("lightning-calib"), "torch": str(torch.__version__)},
    }
