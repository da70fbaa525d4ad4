"""Certificates: what a fitted calibrator promises, and what is measured of it on real outputs."""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lightning_calib.calibrators import Calibrator, load_calibrator
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import sha256
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import Outside, StoredCases
from lightning_calib.studies.base import spread
from lightning_calib.studies.properties import SHIFT, Measured, measure_cases


def certify(
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
    return {
        "calibrator": {"name": module.name, "file": calibrator.name, "sha256": sha256(calibrator)},
        "outputs": {"dataset": store.manifest.dataset, "manifest_sha256": sha256(store.path / MANIFEST)},
        "pooling": pooling,
        "cases": len(chosen),
        **findings(module, measure_cases(module, StoredCases(store, pooling, outside), chosen)),
        "versions": {"lightning-calib": version("lightning-calib"), "torch": str(torch.__version__)},
    }


def findings(calibrator: Calibrator, measured: Measured) -> dict[str, Any]:
    """Declared properties, measured ones, and what of the promises is broken."""
    broken = measured.violations(calibrator.translation_invariant, calibrator.preserves)
    found = {"translation_invariant": measured.invariant, "preserves": measured.preserved}
    return {
        "declared": {"translation_invariant": calibrator.translation_invariant, "preserves": calibrator.preserves},
        "measured": {**asdict(measured), "random_shift_std": SHIFT, **found},
        "broken": broken,
        "passed": not broken,
    }
