"""``calibrate.py monitor``: have the data drifted away from what a deployed pipeline was fitted on?"""

import json as json_format
from dataclasses import asdict
from pathlib import Path

from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.folder import REFERENCE
from lightning_calib.deployment.monitor import ALPHA, RESAMPLES, DriftReport
from lightning_calib.deployment.monitor import monitor as compare
from lightning_calib.deployment.statistics import case_statistics, load_statistics
from lightning_calib.kit.tables import Column, Table
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases


def monitor(
    deployed: Path, outputs: Path, alpha: float = ALPHA, resamples: int = RESAMPLES, seed: int = 0, json: bool = False
) -> int:
    """Compare stored outputs of new images with those that the pipeline was fitted on; labels are not looked at.

    Args:
        deployed: folder that calibrate.py deploy wrote.
        outputs: stored member outputs of the new images.
        alpha: probability of a false alarm.
        resamples: draws from the reference that the thresholds come from.
        seed: seed of the draws.
        json: print the findings as JSON.

    Returns:
        0 without drift, 1 where the data have drifted.
    """
    reference = load_statistics(deployed / REFERENCE)
    ensemble = CalibratedEnsemble.load(deployed, networks=False)
    store = OutputStore(outputs)
    ensemble.deployment.refuse_others(store.manifest, outputs)
    cases = StoredCases(store, ensemble.pipeline.pooling, cache=False)
    new = [case_statistics(cases, case_id, ensemble) for case_id in store.case_ids]
    verdict = compare(reference, new, alpha, resamples, seed)
    print(json_format.dumps(asdict(verdict)) if json else table(verdict))
    return 1 if verdict.drift else 0


def table(verdict: DriftReport) -> str:
    """The findings for a terminal."""
    rows = [
        [c.quantity, c.kind, *(f"{x:.4f}" for x in (c.value, c.threshold, c.p_value)), "drift" if c.drifted else ""]
        for c in verdict.checks
    ]
    cases = f"{verdict.new_cases} new cases against {verdict.reference_cases}"
    found = "the data have drifted" if verdict.drift else "no drift"
    last = f"{found} ({cases}; p = {verdict.p_value:.4f}, alpha = {verdict.alpha:g})"
    head = ("quantity", Column("check", left=True), "value", "threshold", "p", Column("", left=True))
    return Table.of("drift", last, head, rows).to_text()
