"""How much the part of the logits that softmax does not see varies within an image (Section 4.2, Appendix E)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_calib.functional.energy import free_energy_moments, spread_of
from lightning_calib.kit.files import digest, sha256
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.studies.base import Study, StudyError, spread

NAME = "offsets"
DOUBT = 0.99  # confidence below which a voxel is in doubt
_CASES_A_JOB = 16


@dataclass(frozen=True)
class OffsetRow:
    """Standard deviation over the voxels of a case of the pooled free energy, for the first M members.

    Attributes:
        members: M.
        case: its id.
        spread: over all voxels.
        in_doubt: over voxels with a confidence below :data:`DOUBT`; NaN where there are none.
    """

    members: int
    case: str
    spread: float
    in_doubt: float


@dataclass(frozen=True)
class OffsetSummary:
    """Mean and quartiles over cases (``offsets.csv``)."""

    members: int
    cases: int
    mean: float
    p25: float
    p50: float
    p75: float
    in_doubt: float


def run_offsets(study: Study, members: Sequence[int] | None = None, cases: int | None = None) -> dict[str, Any]:
    """Measure the spatial standard deviation of the free energy of the mean logits.

    Args:
        study: where to read and write.
        members: ensemble sizes M; the first M members count. None for 1 up to all.
        cases: cases of the pool set, evenly spread; None for all.

    Returns:
        ``study.json``.
    """
    sizes = _sizes(study, members)
    chosen = spread(study.store.case_ids, cases)
    known = {"outputs": sha256(study.store.path / MANIFEST), "outside": study.results.settings.get("outside")}
    known["doubt"] = DOUBT
    jobs = {}
    for start in range(0, len(chosen), _CASES_A_JOB):
        part = chosen[start : start + _CASES_A_JOB]
        name = digest(known | {"cases": part, "members": sizes})
        jobs[study.folder / "parts" / f"{name}.csv"] = part
    rows = study.tabulate(jobs, partial(offset_rows, study, sizes), OffsetRow, lambda part: f"{len(part)} cases")
    study.save("cases.csv", rows, OffsetRow)
    summary = [summarize(rows, size) for size in sizes]
    study.save("offsets.csv", summary, OffsetSummary)
    return study.write({"members": list(sizes), "cases": len(chosen), "summary": [asdict(row) for row in summary]})


def offset_rows(study: Study, sizes: Sequence[int], case_ids: Sequence[str]) -> list[OffsetRow]:
    """Spreads of some cases for every ensemble size."""
    return [row for case_id in case_ids for row in case_offsets(study, sizes, case_id)]


@torch.inference_mode()
def case_offsets(study: Study, sizes: Sequence[int], case_id: str) -> list[OffsetRow]:
    """Spreads of one case; members are read one after the other."""
    cases, case = study.cases("z"), study.store[case_id]
    target, logits = cases.target(case_id)[None], case.logits
    if logits is None:
        return [_offset_row(sizes[0], case_id, case.pooled("z"), target, cases.ignore_index)]
    total, rows = torch.zeros_like(logits[0], dtype=torch.float32), []
    for size in range(1, max(sizes) + 1):
        total += logits[size - 1].float()
        if size in sizes:
            rows.append(_offset_row(size, case_id, total / size, target, cases.ignore_index))
    return rows


def _offset_row(members: int, case_id: str, logits: Tensor, target: Tensor, ignore_index: int) -> OffsetRow:
    """Spreads of mean logits ``(C, *S)``."""
    doubtful = logits.softmax(0).amax(0) < DOUBT
    spreads = [
        float(spread_of(free_energy_moments(logits[None], labels, ignore_index)))
        for labels in (target, target.where(doubtful, ignore_index))
    ]
    return OffsetRow(members, case_id, *spreads)


def summarize(rows: Sequence[OffsetRow], members: int) -> OffsetSummary:
    """Mean and quartiles over cases for one ensemble size; cases without a voxel that counts are left out.

    Example:
        >>> rows = [OffsetRow(1, case, value, 0.5) for case, value in zip("abcde", [1.0, 2.0, 3.0, 4.0, 5.0])]
        >>> summarize(rows, 1)
        OffsetSummary(members=1, cases=5, mean=3.0, p25=2.0, p50=3.0, p75=4.0, in_doubt=0.5)
    """
    own = [row for row in rows if row.members == members]
    values = np.array([row.spread for row in own if not np.isnan(row.spread)])
    doubtful = [row.in_doubt for row in own if not np.isnan(row.in_doubt)]
    low, middle, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    mean = float(np.mean(doubtful)) if doubtful else float("nan")
    return OffsetSummary(members, len(values), float(values.mean()), low, middle, high, mean)


def _sizes(study: Study, members: Sequence[int] | None) -> tuple[int, ...]:
    """Ensemble sizes that the store can answer for."""
    manifest = study.store.manifest
    if manifest.representation == "log_probs":
        raise StudyError(
            f"{study.store.path} holds log-probabilities, whose free energy is 0 everywhere: the networks' own "
            "scores are gone. Store logits to study offsets"
        )
    largest = manifest.num_members
    sizes = tuple(sorted(set(members or ([largest] if manifest.keep == "pooled" else range(1, largest + 1)))))
    if wrong := [size for size in sizes if not 1 <= size <= largest]:
        raise StudyError(f"members = {wrong}: the store {study.store.path} has {largest} members")
    if manifest.keep == "pooled" and sizes != (largest,):
        raise StudyError(
            f"{study.store.path} keeps pooled logits alone, so that smaller ensembles cannot be made of it; predict "
            "again with --outputs.keep members"
        )
    return sizes
