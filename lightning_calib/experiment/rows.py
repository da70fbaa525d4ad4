"""Rows of the result tables, and their form as CSV: equal rows give equal bytes."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_calib.kit.files import write_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BINS = 600  # fine enough to hold 15, 20, 30, 40 and 50 equal bins exactly


@dataclass(frozen=True)
class CaseRow:
    """Scores of one pipeline on one test case of one repeat (``cases.csv``).

    Attributes:
        dataset: name of the data set.
        repeat: number of the repeat.
        pipeline: name such as ``cms_op(p)``.
        case: id of the case.
        voxels: voxels that count.
        nll: mean of ``-log q_y``.
        dice: Dice score in [0, 1]; NaN where no class is left to average.
        ece: expected calibration error, 50 bins.
        ba_ece: boundary-aware calibration error.
        brier: Brier score.
        flip: share of voxels whose class the calibrator changed, in [0, 1].
        harmful: number of flips from right to wrong.
        beneficial: number of flips from wrong to right.
        neutral: number of flips from wrong to wrong.
    """

    dataset: str
    repeat: int
    pipeline: str
    case: str
    voxels: int
    nll: float
    dice: float
    ece: float
    ba_ece: float
    brier: float
    flip: float
    harmful: int
    beneficial: int
    neutral: int


@dataclass(frozen=True)
class BinRow:
    """Sums of the test voxels of a repeat in one of 600 confidence bins (``bins.csv``); empty bins have no row."""

    repeat: int
    pipeline: str
    bin: int
    count: int
    confidence_sum: float
    correct_sum: int


@dataclass(frozen=True)
class BandRow:
    """Sums of a test case's voxels in one band of distances to the boundary (``bands.csv``); empty ones left out.

    In a case with one label only all voxels are in the last band and ``distance_sum`` is infinite.
    """

    repeat: int
    pipeline: str
    case: str
    band: int
    count: int
    uncertainty_sum: float
    error_sum: int
    distance_sum: float


@dataclass(frozen=True)
class CurveRow:
    """One pass or epoch of the selected fit (``curve.csv``)."""

    step: int
    quantity: str
    value: float


Row = TypeVar("Row", bound="DataclassInstance")  # fields of type int, float or str


def write_rows(path: Path, rows: Iterable[Row], kind: type[Row]) -> None:
    """Write a table in one step; numbers in the shortest form that reads back to the same bits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in fields(kind)])
    writer.writerows(vars(row).values() for row in rows)
    write_text(path, text.getvalue())


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """Read a table; a foreign or damaged file is refused with the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "bins.csv"
        >>> write_rows(path, [BinRow(0, "ts(z)", 599, 10, 9.99, 10)], BinRow)
        >>> read_rows(path, BinRow)
        [BinRow(repeat=0, pipeline='ts(z)', bin=599, count=10, confidence_sum=9.99, correct_sum=10)]
    """
    columns = [column.name for column in fields(kind)]
    types: list[Any] = [column.type for column in fields(kind)]
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if header != columns:
            raise ValueError(f"{path} has the columns {header}, expected {columns}; run `calibrate.py run` again")
        rows = []
        for line in reader:
            try:
                rows.append(kind(*(of(text) for of, text in zip(types, line, strict=True))))
            except ValueError as problem:
                raise ValueError(f"{path}, line {reader.line_num}: {line} ({problem})") from problem
    return rows
