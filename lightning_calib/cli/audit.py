"""``calibrate.py audit``: does a fitted calibrator keep what it promises, on real outputs?"""

import json as json_format
from pathlib import Path
from typing import Any

from lightning_calib.cli.evaluate import fitted_pooling
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import write_json
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import Outside
from lightning_calib.studies.certificate import certify


def audit(
    calibrator: Path,
    outputs: Path,
    cases: int | None = None,
    pooling: Pooling | None = None,
    outside: Outside = "exclude",
    destination: Path | None = None,
    json: bool = False,
) -> int:
    """Measure translation invariance and decision preservation of a calibrator, and write a certificate.

    Args:
        calibrator: file that fit, search or run wrote.
        outputs: frozen outputs to measure on.
        cases: number of cases, evenly spread; by default all.
        pooling: how members are pooled; by default as the calibrator was fitted.
        outside: what voxels count as that were never predicted.
        destination: the certificate; by default audit.json beside the calibrator.
        json: print the certificate as JSON.

    Returns:
        0, or 1 where a declared property does not hold.
    """
    certificate = certify(calibrator, OutputStore(outputs), pooling or fitted_pooling(calibrator), cases, outside)
    path = destination or calibrator.with_name("audit.json")
    write_json(path, certificate)
    print(json_format.dumps(certificate) if json else _told(certificate, path))
    return 0 if certificate["passed"] else 1


def _told(certificate: dict[str, Any], path: Path) -> str:
    declared, measured = certificate["declared"], certificate["measured"]
    lines = [
        f"{certificate['calibrator']['name']}({certificate['pooling']}) on {certificate['cases']} cases, "
        f"{measured['voxels']:,} voxels of {certificate['outputs']['dataset']}",
        f"{'':<24}{'declared':>12}{'measured':>12}",
        f"{'translation invariant':<24}{_yes(declared['translation_invariant']):>12}"
        f"{_yes(measured['translation_invariant']):>12}   largest change under random shifts "
        f"{measured['shift_change']:.3g}",
        f"{'preserves':<24}{declared['preserves'] or 'nothing':>12}{measured['preserves'] or 'nothing':>12}   "
        f"{measured['argmax_changes']:,} argmax changes, {measured['inversions']:,} inversions",
        *(f"BROKEN: {problem}" for problem in certificate["broken"]),
        f"certificate: {path}",
    ]
    return "\n".join(lines)


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
