"""``calibrate.py audit``: does a fitted calibrator keep what it promises, on real outputs?"""

import json as json_format
from pathlib import Path
from typing import Any

from lightning_calib.cli.evaluate import fitted_pooling
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import write_json
from lightning_calib.kit.tables import Column, Table
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import Outside
from lightning_calib.studies import audit as audits


def audit(
    calibrator: Path,
    outputs: Path,
    cases: int | None = None,
    pooling: Pooling | None = None,
    outside: Outside = "exclude",
    destination: Path | None = None,
    json: bool = False,
) -> int:
    """Measure translation invariance and decision preservation of a calibrator.

    Args:
        calibrator: file that fit, search or run wrote.
        outputs: frozen outputs to measure on.
        cases: number of cases, evenly spread; by default all.
        pooling: how members are pooled; by default as the calibrator was fitted.
        outside: what voxels count as that were never predicted.
        destination: what was found; by default audit.json beside the calibrator.
        json: print what was found as JSON.

    Returns:
        0, or 1 where a declared property does not hold.
    """
    found = audits.audit(calibrator, OutputStore(outputs), pooling or fitted_pooling(calibrator), cases, outside)
    path = destination or calibrator.with_name("audit.json")
    write_json(path, found)
    print(json_format.dumps(found) if json else _account(found, path))
    return 0 if found["passed"] else 1


def _account(found: dict[str, Any], path: Path) -> str:
    declared, measured = found["declared"], found["measured"]
    invariant, kept = ([facts[key] for facts in (declared, measured)] for key in ("translation_invariant", "preserves"))
    shifted = f"largest change under random shifts {measured['shift_change']:.3g}"
    changed = f"{measured['argmax_changes']:,} argmax changes, {measured['inversions']:,} inversions"
    rows = [
        ["translation invariant", *("yes" if fact else "no" for fact in invariant), shifted],
        ["preserves", *(kind or "nothing" for kind in kept), changed],
    ]
    last = "\n".join([*(f"BROKEN: {problem}" for problem in found["broken"]), f"audit: {path}"])
    heading = (
        f"{found['calibrator']['name']}({found['pooling']}) on {found['cases']} cases, "
        f"{measured['voxels']:,} voxels of {found['outputs']['dataset']}"
    )
    return f"{heading}\n{Table.of('audit', last, ('', 'declared', 'measured', Column('', left=True)), rows).to_text()}"
