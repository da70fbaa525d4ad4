"""The former ``calibrate.py compare``, now part of ``show``: is one pipeline better than another, or is that noise?"""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

from lightning_calib.calibrators.pipeline import PipelineName, expand_pipelines
from lightning_calib.experiment.comparisons import Comparison
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.summary import paired_comparisons
from lightning_calib.kit.files import plain
from lightning_calib.report.sections.comparisons import comparison_table
from lightning_calib.studies.base import Pipelines

Metric = Literal["nll", "dice", "ece", "ba_ece", "brier", "flip"]
FAMILY = "chosen pairs"


def compare(
    calibration: Path,
    candidates: Pipelines | None = None,
    reference: str | None = None,
    metrics: list[Metric] = ["nll", "dice", "ece", "ba_ece"],  # noqa: B006  # never changed
    json: bool = False,
    trust: bool = False,
) -> int:
    """Compare pipelines of a run with a reference, case by case, with intervals and verdicts.

    Holm's correction covers all comparisons that are asked for together: ask for those you care about.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        candidates: pipelines to compare, as a list or with commas in between; by default all of the run.
        reference: what each is compared with; by default the uncalibrated ensemble, pooled as the candidate is.
        metrics: what is compared.
        json: print the comparisons as JSON.
        trust: import classes of other packages that the run's folder names.
    """
    told = plain([asdict(found) for found in compared(calibration, candidates, reference, metrics, trust)], digits=10)
    print(json_format.dumps(told) if json else comparison_table(told).to_markdown(), end="\n" if json else "")
    return 0


def compared(
    calibration: Path,
    candidates: Pipelines | None,
    reference: str | None,
    metrics: Sequence[str],
    trust: bool = False,
) -> list[Comparison]:
    """Compare pipelines of a run with a reference, or with the uncalibrated ensemble.

    Raises:
        ValueError: where the run lacks one of them, or no two have scores in a common repeat.
    """
    if wrong := set(metrics) - set(get_args(Metric)):
        raise ValueError(f"metrics: {', '.join(sorted(wrong))} cannot be compared; there are {get_args(Metric)}")
    results = Results(calibration, trust)
    pairs = _pairs(results, candidates, reference)
    found = paired_comparisons(results, [(FAMILY, *pair, metric) for pair in pairs for metric in metrics])
    if not found:
        raise ValueError(f"no two of these pipelines have scores in a common repeat of {calibration}; run them again")
    return found


def _pairs(results: Results, candidates: Pipelines | None, reference: str | None) -> list[tuple[str, str]]:
    """References and candidates, all of them in the run; a pipeline is not compared with itself."""
    chosen = map(PipelineName.parse, results.pipelines) if candidates is None else expand_pipelines(candidates)
    fixed = None if reference is None else str(PipelineName.parse(reference, imports=True))
    pairs = [(fixed or f"identity({name.pooling})", str(name)) for name in chosen]
    if strange := {name for pair in pairs for name in pair} - set(results.pipelines):
        raise ValueError(
            f"{', '.join(sorted(strange))}: not in {results.folder}, which has {', '.join(results.pipelines)}; "
            "fit them with `calibrate.py run`, or choose another --reference"
        )
    return [(before, after) for before, after in pairs if before != after]
