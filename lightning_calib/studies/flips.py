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
from lightning_calib.functional.flips import FLIP_KINDS, flip_kinds
from lightning_calib.kit.tables import MISSING, Table
from lightning_calib.report.figures import MOST, Series, band_names, series_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import MINUS, format_count, format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.sections.pictures import SHOWN, flip_shares, with_flips
from lightning_calib.studies.base import Pass, Pipelines, Study
from lightning_calib.tasks.features import calibrate_case

_PAPER = "ms(z)"  # whose flips the paper shows


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
        return sum(getattr(self, kind) for kind in FLIP_KINDS)


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


class Flips(Study):
    """Flips by kind and by distance to the true boundary."""

    name, title = "flips", "Where flips happen"

    def run(self, pipelines: Pipelines | None = None) -> dict[str, Any]:
        """Count flips by harm and by distance to the true boundary.

        Args:
            pipelines: which to look at; by default all that changed a voxel.

        Returns:
            ``study.json``, with the balance of each pipeline and its worst cases.
        """
        results = self.results
        flipping = [
            name
            for name in results.pipelines
            if any(row.score("flip") > 0 for r in results.repeats for row in results.cases_of(r, name))
        ]
        names = () if pipelines is None and not flipping else self.names(pipelines, flipping)
        rows = self.tabulate(self.passes(names, str(BANDS)), partial(flip_rows, self), FlipRow)
        self.save("cases.csv", rows, FlipRow)
        self.save("bands.csv", [row for name in names for row in summarize(results, rows, name)], BandFlips)
        found = {name: balance([row for row in rows if row.pipeline == name]) for name in names}
        return self.write({"pipelines": list(names), "bands": [str(edge) for edge in BANDS], "audit": found})

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Flips by distance to the true boundary, and whether they help."""
        names, found = facts["pipelines"], facts["audit"]
        if not names:
            lead = "No pipeline of this run changed the predicted class of a single test voxel."
            return Section(self.key, self.title, lead)
        rows = self.read("bands.csv", BandFlips)
        lead = (
            "Calibrators without a guarantee may change the segmentation. If flips gather at boundaries, they change "
            "outlines rather than random voxels."
        )
        tables = (_balance_table(found), _concentration(rows, names))
        section = Section(self.key, self.title, lead, (_bands(rows, names),), tables)
        worst = [name for name in names if found[name]["worst"]]
        if not worst:
            return section
        most = max(worst, key=lambda name: sum(found[name][kind] for kind in FLIP_KINDS))
        name = _PAPER if _PAPER in worst else most
        cases = [(entry["repeat"], entry["case"]) for entry in found[name]["worst"]]
        told = f"The test cases in which {name} changes most voxels."
        return with_flips(inputs, section, "flip-worst", name, cases, told)


@torch.inference_mode()
def flip_rows(study: Study, job: Pass) -> list[FlipRow]:
    """Flips of every case, pipeline and band of a pass."""
    cases, rows = study.cases(job.pooling), []
    calibrators = {name: study.calibrator(job.repeat, name) for name in job.pipelines}
    for case_id in job.case_ids:
        logits, labels = cases.read(case_id)
        counted = labels != cases.ignore_index
        before, target = winning_class(logits[None])[0][counted], labels[counted]
        distance = cases.distance(case_id)[counted]
        for name, calibrator in calibrators.items():
            after = winning_class(calibrate_case(calibrator, cases, case_id))[0][counted]
            table = band_counts(target, before, after, distance)
            rows += [FlipRow(job.repeat, name, case_id, k, *row) for k, row in enumerate(table.tolist()) if row[0]]
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
    counted = (torch.ones_like(band, dtype=torch.bool), *flip_kinds(after, before, target))
    return torch.stack([torch.bincount(band[kind], minlength=len(BANDS) - 1) for kind in counted], dim=1)


def balance(rows: Sequence[FlipRow]) -> dict[str, Any]:
    """Balance of a pipeline's flips over all cases, and the cases with most."""
    counts = {kind: sum(getattr(row, kind) for row in rows) for kind in ("voxels", *FLIP_KINDS)}
    by_case: dict[tuple[int, str], int] = {}
    for row in rows:
        by_case[row.repeat, row.case] = by_case.get((row.repeat, row.case), 0) + row.flips
    worst = sorted(by_case, key=lambda key: (-by_case[key], key))
    named: dict[str, int] = {}
    for repeat, case in worst:
        if by_case[repeat, case] and len(named) < SHOWN:
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
        kinds = [_ratio(sum(getattr(row, k) for row in here), own) for k in FLIP_KINDS]
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


def _bands(rows: list[BandFlips], names: list[str]) -> Picture:
    lines = []
    for name in names[:MOST]:
        own = {row.band: row for row in rows if row.pipeline == name}
        rates = [own.get(band) for band in range(len(BANDS) - 1)]
        lines.append(Series.of(name, rates, lambda share: 100 * share, "rate"))
    panel = ("flips (% of the band's voxels)", lines)
    figure = series_figure([panel], band_names(BANDS), "distance to the boundary (voxels)")
    caption = "Share of voxels that change their class, by distance to the true boundary, with 95 % intervals."
    return Picture("flip-bands", figure, caption)


def _balance_table(found: dict[str, Any]) -> Table:
    body = []
    for name, own in found.items():
        total = sum(own[kind] for kind in FLIP_KINDS)
        gain = format_count(own["beneficial"] - own["harmful"]).replace("-", MINUS)
        rate = format_number(100 * total / own["voxels"], 3)
        body.append([name, format_count(total), rate, *flip_shares(own), gain])
    shares = ("harmful (%)", "beneficial (%)", "wrong both times (%)")
    head = ("pipeline", "flips", "% of voxels", *shares, "net gain (voxels)")
    caption = "All test voxels of all repeats. Net gain: beneficial minus harmful flips."
    return Table.of("flips-audit", caption, head, body)


def _concentration(rows: list[BandFlips], names: list[str]) -> Table:
    found = {
        (row.pipeline, row.band): " / ".join(
            format_number(100 * share, 1) for share in (row.share_of_flips, row.share_of_voxels)
        )
        for row in rows
    }
    body = [[name, *(found.get((name, band), MISSING) for band in range(len(BANDS) - 1))] for name in names]
    caption = (
        "Share of all flips / share of all voxels (%) in each band of distance: equal where flips are spread evenly."
    )
    return Table.of("flips-bands", caption, ("pipeline", *band_names(BANDS)), body)
