"""``calibrate.py monitor``: have the data drifted away from what a deployed pipeline was fitted on?"""

import json as json_format
from dataclasses import asdict
from pathlib import Path

from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.folder import REFERENCE
from lightning_calib.deployment.monitor import ALPHA, RESAMPLES, DriftReport, refuse_settings
from lightning_calib.deployment.monitor import monitor as compare
from lightning_calib.deployment.sources import image_cases
from lightning_calib.deployment.statistics import (
    CaseStatistics,
    case_statistics,
    load_statistics,
    scores_statistics,
)
from lightning_calib.functional.devices import named_device
from lightning_calib.kit.progress import Display
from lightning_calib.kit.tables import Column, Table
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases


def monitor(
    deployed: Path,
    outputs: Path | None = None,
    images: Path | None = None,
    alpha: float = ALPHA,
    resamples: int = RESAMPLES,
    seed: int = 0,
    device: str = "cpu",
    trust: bool = False,
    json: bool = False,
) -> int:
    """Compare new images, or stored outputs of them, with what the pipeline was fitted on; labels are not looked at.

    Args:
        deployed: folder that calibrate.py deploy wrote.
        outputs: stored member outputs of the new images.
        images: the new images themselves, an image file or a folder of them, which the deployed networks segment.
        alpha: probability of a false alarm.
        resamples: draws from the reference that the thresholds come from.
        seed: seed of the draws.
        device: where networks run on images, such as cuda.
        trust: import readers and networks of other packages that the deployed folder names.
        json: print the findings as JSON.

    Returns:
        0 without drift, 1 where the data have drifted.
    """
    reference = load_statistics(deployed / REFERENCE)
    refuse_settings(reference, alpha, resamples)
    ensemble = CalibratedEnsemble.load(deployed, networks=images is not None, trust=trust).to(named_device(device))
    if outputs is not None and images is None:
        new = _of_store(outputs, ensemble)
    elif images is not None and outputs is None:
        new = _of_images(images, ensemble, quiet=json)
    else:
        raise ValueError("give either --outputs or --images")
    verdict = compare(reference, new, alpha, resamples, seed)
    print(json_format.dumps(asdict(verdict)) if json else table(verdict))
    return 1 if verdict.drift else 0


def _of_store(outputs: Path, ensemble: CalibratedEnsemble) -> list[CaseStatistics]:
    """Statistics of stored cases."""
    store = OutputStore(outputs)
    ensemble.deployment.refuse_others(store.manifest, outputs)
    cases = StoredCases(store, ensemble.pipeline.pooling, cache=False)
    return [case_statistics(cases, case_id, ensemble) for case_id in store.case_ids]


def _of_images(images: Path, ensemble: CalibratedEnsemble, quiet: bool) -> list[CaseStatistics]:
    """Statistics of images; one is in memory at a time."""
    cases, found = image_cases(images, ensemble), []
    with Display(["case"] * len(cases), 1, quiet=quiet) as shown:
        for case_id, files in cases.items():
            scores, loaded = ensemble.scores_of(files)
            found.append(scores_statistics(case_id, case_id, scores[0].cpu(), ensemble, loaded.valid))
            shown.done("case", case_id)
    return found


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
