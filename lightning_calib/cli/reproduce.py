"""``calibrate.py reproduce``: the run, all studies and one report."""

import json as json_format
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from lightning_calib.cli.run import run
from lightning_calib.cli.study import study_executor
from lightning_calib.experiment.advice import Preserve
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.report.build import build_report
from lightning_calib.report.inputs import MissingInput
from lightning_calib.report.studies import STUDIES
from lightning_calib.studies.base import StudyError


def reproduce(
    outputs: str,
    calibration: Path | None = None,
    workers: int | None = None,
    executor: str | dict[str, Any] = "local",
    studies: list[str] | None = None,
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
        workers: jobs at a time; by default one a core. Results do not depend on it.
        executor: where jobs run: local, ray, or the name of another executor.
        studies: which studies to make; by default all that need no further options.
        preserve: what the recommended pipeline must keep of the pooled ranking.
        json: print what came out as JSON.
        **protocol: see run.

    Returns:
        0, or 1 where a pipeline failed or a declared property does not hold.
    """
    kinds = [kind for kind in map(STUDIES.__getitem__, studies or STUDIES) if studies or kind.reproduced]
    folder = calibration or Path(outputs).resolve().parent / "calibration"
    with redirect_stdout(sys.stderr) if json else nullcontext():
        protocol |= {"outputs": outputs, "calibration": folder}
        code = run(workers=workers, executor=executor, preserve=preserve, report=False, **protocol)
    made: list[str] = []
    left_out: dict[str, str] = {}
    for kind in kinds:
        study = kind(folder, Path(outputs), study_executor(folder, workers, executor), display=not json)
        try:
            facts = study.run()
        except (StudyError, StoreError, MissingInput) as problem:
            left_out[kind.name] = str(problem)
            continue
        made.append(kind.name)
        code = 1 if study.failed(facts) else code
    page = build_report(folder, Path(outputs), folder.resolve().parent / "report", preserve)
    facts = {"calibration": str(folder), "report": str(page), "studies": made, "left_out": left_out}
    print(json_format.dumps(facts) if json else _outcome(facts))
    return code


def _outcome(facts: dict[str, Any]) -> str:
    lines = [f"studies: {', '.join(facts['studies']) or 'none'}"]
    lines += [f"left out {name}: {reason}" for name, reason in facts["left_out"].items()]
    return "\n".join([*lines, f"report:  {facts['report']}"])
