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
from lightning_calib.kit.style import ENERGY
from lightning_calib.kit.tables import Table
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.report.figures import Series, series_figure
from lightning_calib.report.inputs import Inputs, spread
from lightning_calib.report.map_figures import scalar_figure
from lightning_calib.report.maps import free_energy
from lightning_calib.report.numbers import format_count, format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.studies.base import Study, StudyError

DOUBT = 0.99  # confidence below which a voxel is in doubt
_CASES_A_JOB = 16
_QUARTILES = (0.25, 0.5, 0.75)


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


class Offsets(Study):
    """The spatial standard deviation of the free energy of the mean logits, for every ensemble size."""

    name, title = "offsets", "Offsets by ensemble size"

    def run(self, members: list[int] | None = None, cases: int | None = None) -> dict[str, Any]:
        """Measure how much the free energy of the logits varies within images, for every ensemble size.

        Args:
            members: ensemble sizes; of each, the first members count. By default 1 up to all.
            cases: cases of the pool set, evenly spread; by default all.
        """
        sizes = self._sizes(members)
        chosen = spread(self.store.case_ids, cases)
        known = {"outputs": sha256(self.store.path / MANIFEST), "outside": self.results.settings.get("outside")}
        known["doubt"] = DOUBT
        jobs = {}
        for start in range(0, len(chosen), _CASES_A_JOB):
            part = chosen[start : start + _CASES_A_JOB]
            name = digest(known | {"cases": part, "members": sizes})
            jobs[self.folder / "parts" / f"{name}.csv"] = part
        rows = self.tabulate(jobs, partial(offset_rows, self, sizes), OffsetRow, lambda part: f"{len(part)} cases")
        self.save("cases.csv", rows, OffsetRow)
        summary = [summarize(rows, size) for size in sizes]
        self.save("offsets.csv", summary, OffsetSummary)
        return self.write({"members": list(sizes), "cases": len(chosen), "summary": [asdict(row) for row in summary]})

    def _sizes(self, members: Sequence[int] | None) -> tuple[int, ...]:
        """Ensemble sizes that the store can answer for."""
        manifest, path = self.store.manifest, self.store.path
        if manifest.representation == "log_probs":
            raise StudyError(
                f"{path} holds log-probabilities, whose free energy is 0 everywhere: the networks' own scores are "
                "gone. Store logits to study offsets"
            )
        largest = manifest.num_members
        sizes = tuple(sorted(set(members or ([largest] if manifest.keep == "pooled" else range(1, largest + 1)))))
        if wrong := [size for size in sizes if not 1 <= size <= largest]:
            raise StudyError(f"members = {wrong}: the store {path} has {largest} members")
        if manifest.keep == "pooled" and sizes != (largest,):
            raise StudyError(
                f"{path} keeps pooled logits alone, so that smaller ensembles cannot be made of it; predict again "
                "with --outputs.keep members"
            )
        return sizes

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """Mean and quartiles by ensemble size."""
        rows = (
            f"M = {r['members']}: {r['mean']:.2f} [{r['p25']:.2f}, {r['p50']:.2f}, {r['p75']:.2f}]"
            for r in facts["summary"]
        )
        return ["spread of the free energy within images, mean [quartiles]:", *rows]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Spatial standard deviation of the pooled free energy against the number of members."""
        summary = self.read("offsets.csv", OffsetSummary)
        line = Series("mean", *([getattr(row, key) for row in summary] for key in ("mean", "p25", "p75")))
        figure = series_figure([("spread of the free energy", [line])], [str(r.members) for r in summary], "members M")
        figure.axes[0].set_ylim(bottom=0)  # or small changes look large
        told = (
            "Mean over cases of the standard deviation within an image; bars reach from the first to the third "
            "quartile."
        )
        pictures = [Picture("offsets", figure, told)]
        if inputs.store is not None:
            largest = summary[-1].members
            pictures.append(_maps(inputs, [r for r in self.read("cases.csv", OffsetRow) if r.members == largest]))
        caption = (
            f"{format_count(summary[0].cases)} cases of {inputs.results.dataset['name']}; free energy of the mean "
            f"logits. In doubt: mean over cases of the spread among voxels with a confidence below {DOUBT:g}, those "
            "that calibration can change."
        )
        rows = [
            [f"M = {row.members}", *(format_number(x, 2) for x in (row.mean, row.p25, row.p50, row.p75, row.in_doubt))]
            for row in summary
        ]
        table = Table.of("offsets", caption, ("members", "mean", "25 %", "median", "75 %", "in doubt"), rows)
        lead = (
            "Softmax does not see a constant added to all logits of a voxel, but calibrators that are not translation "
            "invariant do. If that constant varies within images, they can be misled: how much does it, and is it a "
            "matter of the ensemble's size?"
        )
        return Section(self.key, self.title, lead, tuple(pictures), (table,))


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
    low, middle, high = (float(value) for value in np.quantile(values, _QUARTILES))
    mean = float(np.mean(doubtful)) if doubtful else float("nan")
    return OffsetSummary(members, len(values), float(values.mean()), low, middle, high, mean)


def _maps(inputs: Inputs, rows: list[OffsetRow]) -> Picture:
    """Cases at the quartiles of the spread."""
    ranked = sorted(rows, key=lambda row: row.spread)
    chosen = {ranked[round(share * (len(ranked) - 1))].case: share for share in _QUARTILES}
    pooled, maps = inputs.cases("z"), []
    for case, share in chosen.items():
        energy, deviation = free_energy(pooled, case)
        maps.append((f"{case}, {share:.0%} (spread {format_number(deviation, 2)})", energy))
    caption = "Free energy of the mean logits in cases at the quartiles of its spread, on one colour scale."
    return Picture("offset-maps", scalar_figure(maps, ENERGY, "free energy"), caption, wide=True)
