"""The paper's four reliability curves: single model, pooled ensemble, best calibrated, best order preserving."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.results import Results
from lightning_calib.functional.binning import BinTable
from lightning_calib.studies.base import Study, StudyError

NAME = "reliability"
BINS = 15  # of ACE in the main results


@dataclass(frozen=True)
class CurveBin:
    """One bin of one curve (``curves.csv``): all test voxels of all repeats; empty bins are left out."""

    role: str
    pipeline: str
    bin: int
    voxels: int
    confidence: float
    accuracy: float


def run_reliability(study: Study, bins: int = BINS) -> dict[str, Any]:
    """Choose the four curves by ACE as the paper does, and write them.

    Args:
        study: where to read and write.
        bins: number of bins, a divisor of 600.

    Returns:
        ``study.json``: roles, pipelines and their mean ACE over repeats.
    """
    results = study.results
    roles = curves(results, bins)
    rows = [row for role, name in roles.items() for row in curve_bins(results, role, name, bins)]
    study.save("curves.csv", rows, CurveBin)
    told = [{"role": role, "pipeline": name, "ace": mean_ace(results, name, bins)} for role, name in roles.items()]
    return study.write({"bins": bins, "curves": told})


def curves(results: Results, bins: int = BINS) -> dict[str, str]:
    """Pipelines by their role; a pipeline that is best in both respects is named once.

    The uncalibrated ensemble is pooled as the best calibrated pipeline is.
    """
    scored = [name for name in results.pipelines if any(results.cases_of(r, name) for r in results.repeats)]
    calibrated = [name for name in scored if PipelineName.parse(name).calibrator != "identity"]
    ordered = [name for name in calibrated if PipelineName.parse(name).preserves == "order"]
    if not scored:
        raise StudyError(f"no pipeline of {results.folder} has scores; start `calibrate.py run` again")
    best = _lowest(calibrated, lambda name: mean_ace(results, name, bins))
    keeping = _lowest(ordered, lambda name: mean_ace(results, name, bins))
    pooling = PipelineName.parse(best).pooling if best else "p"
    wanted = {
        "single model": "identity(p0)",
        "uncalibrated ensemble": f"identity({pooling})",
        "lowest ACE": best,
        "lowest ACE, order preserving": None if keeping == best else keeping,
    }
    return {role: name for role, name in wanted.items() if name in scored}


def mean_ace(results: Results, pipeline: str, bins: int = BINS) -> float:
    """ACE, averaged over the repeats that have scores."""
    held = [r for r in results.repeats if results.cases_of(r, pipeline)]
    return float(np.mean([results.average_calibration_error(r, pipeline, bins) for r in held]))


def curve_bins(results: Results, role: str, pipeline: str, bins: int = BINS) -> list[CurveBin]:
    """The bins of a curve."""
    tables = [results.bin_table(r, pipeline, bins) for r in results.repeats if results.cases_of(r, pipeline)]
    pooled = BinTable(*(torch.stack(columns).sum(dim=0) for columns in zip(*tables, strict=True)))
    columns = (pooled.voxels, pooled.mean_confidence(), pooled.accuracy())
    found = enumerate(zip(*(column.tolist() for column in columns), strict=True))
    return [CurveBin(role, pipeline, number, *values) for number, values in found if values[0]]


def _lowest(names: list[str], score: Callable[[str], float]) -> str | None:
    return min(names, key=score, default=None)
