"""``calibrate.py reproduce``: the run, all studies and one report."""

import json as json_format
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, Literal

from lightning_calib.cli.run import quiet, run
from lightning_calib.executors.local import available_cores
from lightning_calib.experiment.recommend import Preserve
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.report.build import build_report
from lightning_calib.studies.base import Study, StudyError
from lightning_calib.studies.bins import run_bins
from lightning_calib.studies.calibration_size import run_calibration_size
from lightning_calib.studies.claims import run_claims
from lightning_calib.studies.ensemble_size import run_ensemble_size
from lightning_calib.studies.flips import run_flips
from lightning_calib.studies.offsets import run_offsets
from lightning_calib.studies.properties import run_properties
from lightning_calib.studies.reliability import run_reliability
from lightning_calib.studies.selection import run_selection
from lightning_calib.studies.shift import run_shift

StudyName = Literal[
    "claims",
    "selection",
    "reliability",
    "properties",
    "flips",
    "bins",
    "offsets",
    "shift",
    "calibration_size",
    "ensemble_size",
]

# Quick ones first: an interrupted reproduction has most of the paper.
_STUDIES: dict[StudyName, Callable[[Study], dict[str, Any]]] = {
    "claims": run_claims,
    "selection": run_selection,
    "reliability": run_reliability,
    "properties": run_properties,
    "flips": run_flips,
    "bins": run_bins,
    "offsets": run_offsets,
    "shift": run_shift,
    "calibration_size": run_calibration_size,
    "ensemble_size": run_ensemble_size,
}


def reproduce(
    outputs: str,
    calibration: Path | None = None,
    workers: int | None = None,
    studies: list[StudyName] | None = None,
    preserve: Preserve = "order",
    json: bool = False,
    **protocol: Any,
) -> int:
    """Make every table and figure of the paper from frozen outputs: the run, all studies, one report.

    Goes on where an earlier call stopped. A study that the data do not allow (no stores of corrupted images, say) is
    named with the reason.

    Args:
        outputs: folder of the frozen outputs, such as runs/camvid/outputs.
        calibration: where results go; by default a folder named calibration beside the outputs.
        workers: processes at a time; by default one a core. Results do not depend on it.
        studies: which studies to make; by default all.
        preserve: what the recommended pipeline must keep of the pooled ranking.
        json: print what came out as JSON.
        **protocol: see run.

    Returns:
        0, or 1 where a pipeline failed or a declared property does not hold.
    """
    folder = calibration or Path(outputs).resolve().parent / "calibration"
    number = available_cores() if workers is None else workers
    with redirect_stdout(sys.stderr) if json else nullcontext():
        code = run(outputs=outputs, calibration=folder, workers=number, preserve=preserve, report=False, **protocol)
    made: list[str] = []
    left_out: dict[str, str] = {}
    for name in studies or _STUDIES:
        try:
            facts = _STUDIES[name](Study(name, folder, Path(outputs), number, display=not json, start=quiet))
        except (StudyError, StoreError) as problem:
            left_out[name] = str(problem)
            continue
        made.append(name)
        code = 1 if facts.get("broken") or facts.get("failures") else code
    page = build_report(folder, Path(outputs), folder.resolve().parent / "report", preserve)
    facts = {"calibration": str(folder), "report": str(page), "studies": made, "left_out": left_out}
    print(json_format.dumps(facts) if json else _told(facts))
    return code


def _told(facts: dict[str, Any]) -> str:
    lines = [f"studies: {', '.join(facts['studies']) or 'none'}"]
    lines += [f"left out {name}: {reason}" for name, reason in facts["left_out"].items()]
    return "\n".join([*lines, f"report:  {facts['report']}"])
