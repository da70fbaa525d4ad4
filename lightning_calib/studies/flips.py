"""Which decisions calibrators change, and where: by harm and by distance to the true boundary (Appendix D)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import Floats
from lightning_calib.functional.boundary import BANDS
from lightning_calib.functional.experts import winning_class
from lightning_calib.studies.base import Pass, Pipelines, Study, read_cases

NAME = "flips"
WORST = 3  # cases that are named, for the maps


@dataclass(frozen=True)
class FlipRow:
    """Flips of a pipeline in one distance band of a test case (``cases.csv``); empty bands are left out."""

    repeat: int
    pipeline: str
    case: str
    band: int
    voxels: int
    harmful: int
    beneficial: int
    neutral: int

    @property
    def flips(self) -> int:
        """All flips."""
        return self.harmful + self.beneficial + self.neutral


@dataclass(frozen=True)
class BandFlips:
    """Flips of a pipeline in one distance band over all cases (``bands.csv``).

    Attributes:
        pipeline: its name.
        band: number of the band.
        share_of_voxels: of all voxels, those in the band.
        share_of_flips: of all flips, those in the band.
        rate: flip rate in the band, mean over cases and repeats.
        low: lower bound of its 95 % interval.
        high: upper bound.
        harmful: share of the band's flips that are harmful.
        beneficial: share that is beneficial.
        neutral: share that is wrong both times.
    """

    pipeline: str
    band: int
    share_of_voxels: float
    share_of_flips: float
    rate: float
    low: float
    high: float
    harmful: float
    beneficial: float
    neutral: float


def run_flips(study: Study, pipelines: Pipelines | None = None) -> dict[str, Any]:
    """Count flips by distance band.

    Args:
        study: where to read and write.
        pipelines: which to look at; None for all that flipped a voxel in the run.

    Returns:
        ``study.json``, with the audit of each pipeline and its worst cases.
    """
    results = study.results
    flipping = [
        name
        for name in results.pipelines
        if any(row.flip > 0 for r in results.repeats for row in results.cases_of(r, name))
    ]
    names = () if pipelines is None and not flipping else study.names(pipelines, flipping)
    rows = study.tabulate(study.passes(names, str(BANDS)), partial(flip_rows, study), FlipRow)
    study.save("cases.csv", rows, FlipRow)
    bands = [row for name in names for row in summarize(results, rows, name)]
    study.save("bands.csv", bands, BandFlips)
    audits = {name: audit([row for row in rows if row.pipeline == name]) for name in names}
    return study.write({"pipelines": list(names), "bands": [str(edge) for edge in BANDS], "audit": audits})


@torch.inference_mode()
def flip_rows(study: Study, job: Pass) -> list[FlipRow]:
    """Flips of every case, pipeline and band of a pass."""
    cases, rows = study.cases(job.pooling), []
    calibrators = {name: study.calibrator(job.repeat, name) for name in job.pipelines}
    for case in read_cases(cases, job.case_ids):
        counted = case.target[0] != cases.ignore_index
        before, target, distance = (x[0][counted] for x in (winning_class(case.logits), case.target, case.distance))
        for name, calibrator in calibrators.items():
            after = winning_class(calibrator(case.logits))[0][counted]
            table = band_counts(target, before, after, distance)
            rows += [FlipRow(job.repeat, name, case.case_id, k, *row) for k, row in enumerate(table.tolist()) if row[0]]
    return rows


def band_counts(target: Tensor, before: Tensor, after: Tensor, distance: Tensor) -> Tensor:
    """Voxels, harmful, beneficial and neutral flips in each distance band ``(bands, 4)``.

    Args:
        target: true classes of the voxels that count ``(N,)``.
        before: classes predicted from the pooled logits ``(N,)``.
        after: classes predicted after calibration ``(N,)``.
        distance: distance of each voxel to the true boundary ``(N,)``.

    Example:
        >>> zero = torch.zeros(2, dtype=torch.long)
        >>> band_counts(zero, zero, torch.tensor([0, 1]), torch.tensor([0.0, 4.0]))[:2]
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0]])
    """
    band = torch.bucketize(distance.double(), torch.tensor(BANDS[1:-1], dtype=torch.float64), right=True)
    flipped, was_right, is_right = before != after, before == target, after == target
    kinds = (torch.ones_like(flipped), flipped & was_right, flipped & is_right, flipped & ~was_right & ~is_right)
    return torch.stack([torch.bincount(band[kind], minlength=len(BANDS) - 1) for kind in kinds], dim=1)


def audit(rows: Sequence[FlipRow]) -> dict[str, Any]:
    """Balance of a pipeline's flips over all cases, and the cases with most."""
    counts = {kind: sum(getattr(row, kind) for row in rows) for kind in ("voxels", "harmful", "beneficial", "neutral")}
    by_case: dict[tuple[int, str], int] = {}
    for row in rows:
        by_case[row.repeat, row.case] = by_case.get((row.repeat, row.case), 0) + row.flips
    worst = sorted(by_case, key=lambda key: (-by_case[key], key))
    named: dict[str, int] = {}
    for repeat, case in worst:
        if by_case[repeat, case] and len(named) < WORST:
            named.setdefault(case, repeat)
    return {**counts, "worst": [{"case": case, "repeat": repeat} for case, repeat in named.items()]}


def summarize(results: Results, rows: Sequence[FlipRow], pipeline: str) -> list[BandFlips]:
    """One row a band that has voxels."""
    mine = [row for row in rows if row.pipeline == pipeline]
    voxels, flips = sum(row.voxels for row in mine), sum(row.flips for row in mine)
    repeats = sorted({row.repeat for row in mine})
    tables = [_rates([row for row in mine if row.repeat == r], results.test_cases(r)) for r in repeats]
    bounds = results.intervals(tables, repeats)
    found = []
    for band, rate in enumerate(bounds):
        here = [row for row in mine if row.band == band]
        own = sum(row.flips for row in here)
        kinds = [_ratio(sum(getattr(row, k) for row in here), own) for k in ("harmful", "beneficial", "neutral")]
        shares = (_ratio(sum(row.voxels for row in here), voxels), _ratio(own, flips))
        if here:
            found.append(BandFlips(pipeline, band, *shares, *asdict(rate).values(), *kinds))
    return found


def _rates(rows: Sequence[FlipRow], cases: Sequence[str]) -> Floats:
    """Flip rates of a repeat ``(cases, bands)``; NaN where a case has no voxel in a band."""
    places = {case: n for n, case in enumerate(cases)}
    rates = np.full((len(places), len(BANDS) - 1), np.nan)
    for row in rows:
        rates[places[row.case], row.band] = row.flips / row.voxels
    return rates


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
