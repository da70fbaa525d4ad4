"""Experiments on all regions of one store: where each is, and what nesting does to what is recommended."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.calibrators.regions import RegionCalibrator
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.layout import RUNS, ResultsError
from lightning_calib.experiment.results import Results
from lightning_calib.functional.regions import log_odds, nest
from lightning_calib.kit.files import write_json
from lightning_calib.kit.typed import read_typed
from lightning_calib.outputs.regions import Region
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases

_VERSION = 1


@dataclass(frozen=True)
class RegionRun:
    """The experiment on one region."""

    region: Region
    results: Results

    @property
    def store(self) -> OutputStore:
        """The view of the region that it was run on."""
        return OutputStore(self.results.settings["outputs"], self.results.settings.get("members"))

    def chosen(self, preserve: Preserve) -> str | None:
        """The recommended pipeline; None where none qualifies."""
        return self.results.chosen(preserve)


@dataclass(frozen=True)
class _Entry:
    """A region with the folder of its experiment."""

    name: str
    labels: tuple[int, ...]
    calibration: str


@dataclass(frozen=True)
class _Facts:
    """What ``regions.json`` holds."""

    format_version: int
    regions: tuple[_Entry, ...]


def write_runs(folder: Path, regions: Sequence[Region], calibrations: Mapping[str, Path]) -> None:
    """Write ``regions.json``: every region with the folder of its experiment, relative to this one."""
    folder.mkdir(parents=True, exist_ok=True)
    start = folder.resolve()
    entries = [
        asdict(region) | {"calibration": os.path.relpath(calibrations[region.name].resolve(), start)}
        for region in regions
    ]
    write_json(folder / RUNS, {"format_version": _VERSION, "regions": entries})


def read_runs(folder: Path, trust: bool = False) -> list[RegionRun]:
    """The experiments that ``regions.json`` names, in the order of the channels; ``trust`` is that of the results."""
    facts = read_typed(folder / RUNS, _Facts, "run `calibrate.py run` again")
    if facts.format_version != _VERSION:
        raise ResultsError(f"{folder / RUNS} is of another version: run `calibrate.py run` again")
    return [
        RegionRun(Region(entry.name, entry.labels), Results(folder / entry.calibration, trust))
        for entry in facts.regions
    ]


@dataclass(frozen=True)
class Nesting:
    """What nesting does to one region on test cases.

    Attributes:
        nll: NLL of the region, calibrated by itself; mean over cases and repeats.
        nested_nll: the same once regions are nested.
        lowered: share of voxels that nesting gives a lower probability.
        contradicting: share of voxels that lie inside the region and outside one that it lies within.
    """

    nll: float
    nested_nll: float
    lowered: float
    contradicting: float


def nesting(runs: Sequence[RegionRun], pipelines: Sequence[str]) -> list[Nesting]:
    """Judge one pipeline a region on the test cases of all repeats, before and after nesting.

    Args:
        runs: the experiments.
        pipelines: for each region the pipeline.

    Returns:
        One entry a region; none where a pipeline has no fit in some repeat.
    """
    labels = [run.region.labels for run in runs]
    cases = [
        StoredCases(run.store, PipelineName.parse(name).pooling) for run, name in zip(runs, pipelines, strict=True)
    ]
    rows = []
    for repeat in runs[0].results.repeats:
        fitted = [run.results.calibrator(repeat, name) for run, name in zip(runs, pipelines, strict=True)]
        found = [calibrator for calibrator in fitted if calibrator is not None]
        if len(found) < len(fitted):
            return []
        calibrator = RegionCalibrator(found, labels).eval()
        rows += [_nested_case(calibrator, cases, case_id) for case_id in runs[0].results.split(repeat)["test"]]
    table = torch.stack(rows)  # (cases, R, 4)
    return [Nesting(*row) for row in table.nanmean(dim=0).tolist()]


@torch.no_grad()
def _nested_case(calibrator: RegionCalibrator, cases: Sequence[StoredCases], case_id: str) -> Tensor:
    """The figures of :class:`Nesting` for one case, ``(R, 4)``; NaN where no voxel counts."""
    each = calibrator.each(torch.stack([log_odds(case.pooled(case_id), dim=0) for case in cases])[None])
    nested = nest(each, calibrator.within)
    rows = []
    for number, case in enumerate(cases):
        target, larger = case.target(case_id), calibrator.within[number]
        counted, inside = target != case.ignore_index, target == 1
        own, after = each[0, number], nested[0, number]
        outside_larger = (nested[0, larger] <= 0).any(dim=0) if larger else torch.zeros_like(inside)
        maps = [_nll(own, inside), _nll(after, inside), after < own, (own > 0) & outside_larger]
        rows.append(torch.stack([each_map[counted].double().mean() for each_map in maps]))
    return torch.stack(rows)


def _nll(logits: Tensor, inside: Tensor) -> Tensor:
    """``-log q_y`` of log-odds."""
    return softplus(torch.where(inside, -logits, logits))
