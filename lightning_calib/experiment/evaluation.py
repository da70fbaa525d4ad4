"""Scores of many pipelines in one pass over the test cases."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.experiment.rows import BandRow, BinRow, CaseRow
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.statistics import ImageStatistics, image_statistics


@dataclass(frozen=True)
class TestCase:
    """A pooled test case.

    Attributes:
        case_id: name of the case.
        logits: pooled logits ``(1, C, *S)``.
        target: labels ``(1, *S)``; voxels that count nowhere carry the ignored label.
        distance: distances to the target's boundary ``(1, *S)``.
    """

    __test__ = False  # not a test for pytest to collect

    case_id: str
    logits: Tensor
    target: Tensor
    distance: Tensor


@dataclass(frozen=True)
class Facts:
    """What evaluation needs to know of the data set.

    Attributes:
        dataset: its name.
        ignore_index: label of voxels that count nowhere.
        background: class that Dice leaves out; None to average over all classes.
    """

    dataset: str
    ignore_index: int | None = None
    background: int | None = None


@dataclass
class Evaluated:
    """Result rows of one pipeline in one repeat."""

    cases: list[CaseRow] = field(default_factory=list)
    bins: list[BinRow] = field(default_factory=list)
    bands: list[BandRow] = field(default_factory=list)


@torch.inference_mode()
def evaluate(
    test_cases: Iterable[TestCase], calibrators: Mapping[str, Calibrator], facts: Facts, repeat: int
) -> dict[str, Evaluated]:
    """Every metric of every pipeline; each case is read once.

    Args:
        test_cases: the cases, pooled as all these pipelines take them.
        calibrators: fitted calibrators by the name of their pipeline.
        facts: what the data set says about labels.
        repeat: number of the repeat, for the rows.

    Returns:
        Rows by pipeline; cases in the order in which they came.
    """
    evaluated = {name: Evaluated() for name in calibrators}
    pooled: dict[str, BinTable] = {}
    for case in test_cases:
        reference = winning_class(case.logits)
        for name, calibrator in calibrators.items():
            statistics = _statistics(case, calibrator, reference, facts)
            table = BinTable(*(column[0] for column in statistics.bins))
            pooled[name] = _sum(pooled[name], table) if name in pooled else table
            evaluated[name].cases.append(_case_row(case, statistics, facts, repeat, name))
            evaluated[name].bands.extend(_band_rows(case, statistics, repeat, name))
    for name, table in pooled.items():
        evaluated[name].bins.extend(_bin_rows(table, repeat, name))
    return evaluated


def _sum(first: BinTable, second: BinTable) -> BinTable:
    return BinTable(*(a + b for a, b in zip(first, second, strict=True)))


def _statistics(case: TestCase, calibrator: Calibrator, reference: Tensor, facts: Facts) -> ImageStatistics:
    return image_statistics(
        calibrator(case.logits),
        case.target,
        ignore_index=facts.ignore_index,
        reference=reference,
        distance=case.distance,
    )


def _case_row(case: TestCase, statistics: ImageStatistics, facts: Facts, repeat: int, pipeline: str) -> CaseRow:
    flips = statistics.flips
    assert flips is not None  # a reference was given
    return CaseRow(
        dataset=facts.dataset,
        repeat=repeat,
        pipeline=pipeline,
        case=case.case_id,
        voxels=int(statistics.voxels),
        nll=float(statistics.negative_log_likelihood()),
        dice=float(statistics.dice_score(facts.background is None, facts.background or 0)),
        ece=float(statistics.expected_calibration_error()),
        ba_ece=float(statistics.boundary_aware_calibration_error()),
        brier=float(statistics.brier_score()),
        flip=float(statistics.flip_rate()),
        harmful=int(flips.harmful),
        beneficial=int(flips.beneficial),
        neutral=int(flips.neutral),
    )


def _bin_rows(table: BinTable, repeat: int, pipeline: str) -> Iterator[BinRow]:
    columns = zip(table.voxels.tolist(), table.correct.tolist(), table.confidence.tolist(), strict=True)
    for number, (count, correct, confidence) in enumerate(columns):
        if count:
            yield BinRow(repeat, pipeline, number, count, confidence, correct)


def _band_rows(case: TestCase, statistics: ImageStatistics, repeat: int, pipeline: str) -> Iterator[BandRow]:
    assert statistics.bands is not None  # distances were given
    columns = zip(*(column[0].tolist() for column in statistics.bands), strict=True)
    for band, (count, errors, uncertainty, distance) in enumerate(columns):
        if count:
            yield BandRow(repeat, pipeline, case.case_id, band, count, uncertainty, errors, distance)
