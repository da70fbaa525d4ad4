"""How much the part of the logits that softmax does not see varies within an image (Section 4.2, Appendix E)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lightning_calib.data.atomic import sha256
from lightning_calib.data.manifest import MANIFEST
from lightning_calib.functional.energy import free_energy_moments, spread_of
from lightning_calib.protocol.plan import digest
from lightning_calib.protocol.studies.base import Study, StudyError, spread

NAME = "offsets"
_CASES_A_JOB = 16


@dataclass(frozen=True)
class OffsetRow:
    """Standard deviation over the voxels of a case of the pooled free energy, for the first M members."""

    members: int
    case: str
    spread: float


@dataclass(frozen=True)
class OffsetSummary:
    """Mean and quartiles over cases (``offsets.csv``)."""

    members: int
    cases: int
    mean: float
    p25: float
    p50: float
    p75: float


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
        moments = free_energy_moments(case.pooled("z")[None], target, cases.ignore_index)
        return [OffsetRow(sizes[0], case_id, float(spread_of(moments)))]
    total, rows = torch.zeros_like(logits[0], dtype=torch.float32), []
    for size in range(1, max(sizes) + 1):
        total += logits[size - 1].float()
        if size in sizes:
            moments = free_energy_moments((total / size)[None], target, cases.ignore_index)
            rows.append(OffsetRow(size, case_id, float(spread_of(moments))))
    return rows


def summarize(rows: Sequence[OffsetRow], members: int) -> OffsetSummary:
    """Mean and quartiles over cases for one ensemble size; cases without a voxel that counts are left out.

    Example:
        >>> rows = [OffsetRow(1, case, value) for case, value in zip("abcde", [1.0, 2.0, 3.0, 4.0, 5.0])]
        >>> summarize(rows, 1)
        OffsetSummary(members=1, cases=5, mean=3.0, p25=2.0, p50=3.0, p75=4.0)
    """
    values = np.array([row.spread for row in rows if row.members == members and not np.isnan(row.spread)])
    quartiles = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return OffsetSummary(members, len(values), float(values.mean()), *quartiles)


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
