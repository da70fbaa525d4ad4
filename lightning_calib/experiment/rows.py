"""Rows of the result tables, and their form as CSV: equal rows give equal bytes."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_calib.functional.flips import FLIP_KINDS
from lightning_calib.kit.files import FileError, csv_rows, write_csv

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BINS = 600  # fine enough to hold 15, 20, 30, 40 and 50 equal bins exactly

CASE_BINS = 15  # of a case's own table: those of the average calibration error
_CASE = {"dataset": str, "repeat": int, "pipeline": str, "case": str, "voxels": int}


@dataclass(frozen=True)
class CaseRow:
    """Scores of one pipeline on one test case of one repeat (``cases.csv``).

    Attributes:
        dataset: name of the data set.
        repeat: number of the repeat.
        pipeline: name such as ``cms_op(p)``.
        case: id of the case.
        voxels: voxels that count.
        scores: every score that has a value for a case, by its key.
        flips: number of flips of each kind: harmful, beneficial, neutral.
    """

    dataset: str
    repeat: int
    pipeline: str
    case: str
    voxels: int
    scores: dict[str, float]
    flips: dict[str, int]

    def score(self, key: str) -> float:
        """A score; NaN where the row was written by a version that had none of that name."""
        return self.scores.get(key, float("nan"))


@dataclass(frozen=True)
class PooledRow:
    """A score of all test voxels of a repeat together (``pooled.csv``)."""

    repeat: int
    pipeline: str
    score: str
    value: float


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
class CaseBinRow:
    """Sums of a test case's voxels in one of 15 confidence bins (``case_bins.csv``); empty bins have no row."""

    repeat: int
    pipeline: str
    case: str
    bin: int
    count: int
    confidence_sum: float
    correct_sum: int


@dataclass(frozen=True)
class ClassRow:
    """What the test voxels of a repeat say about one class (``classes.csv``).

    Attributes:
        repeat: number of the repeat.
        pipeline: name such as ``cms_op(p)``.
        label: number of the class.
        dice: mean over the test cases that have the class in target or prediction; NaN where none has.
        cases: how many these are.
        voxels: voxels whose target it is.
        predicted: voxels whose prediction it is.
        hits: voxels of which both hold.
    """

    repeat: int
    pipeline: str
    label: int
    dice: float
    cases: int
    voxels: int
    predicted: int
    hits: int


@dataclass(frozen=True)
class ClassBinRow:
    """Sums of a repeat's test voxels in one of 50 bins of a class's probability (``class_bins.csv``)."""

    repeat: int
    pipeline: str
    label: int
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
    """Write a table in one step."""
    write_csv(path, [column.name for column in fields(kind)], (list(vars(row).values()) for row in rows))


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """Read a table; a foreign or damaged file is refused with the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "bins.csv"
        >>> write_rows(path, [BinRow(0, "ts(z)", 599, 10, 9.99, 10)], BinRow)
        >>> read_rows(path, BinRow)
        [BinRow(repeat=0, pipeline='ts(z)', bin=599, count=10, confidence_sum=9.99, correct_sum=10)]
    """
    types: dict[str, Any] = {column.name: column.type for column in fields(kind)}
    header, lines = _read(path)
    if header != list(types):
        raise _foreign(path, header, list(types))
    return [kind(**values) for values in _typed(path, lines, types)]


def write_cases(path: Path, rows: list[CaseRow]) -> None:
    """Write ``cases.csv``: facts, the scores of the first release, flips, then every further score."""
    keys = list(dict.fromkeys(key for row in rows for key in row.scores))
    first = [key for key in ("nll", "dice", "ece", "ba_ece", "brier", "flip") if key in keys]
    further = [key for key in keys if key not in first]
    table = (
        [
            *(getattr(row, name) for name in _CASE),
            *(row.score(key) for key in first),
            *(row.flips[kind] for kind in FLIP_KINDS),
            *(row.score(key) for key in further),
        ]
        for row in rows
    )
    write_csv(path, [*_CASE, *first, *FLIP_KINDS, *further], table)


def read_cases(path: Path) -> list[CaseRow]:
    """Read ``cases.csv`` of this or an earlier version: columns that are no facts and no flips are scores."""
    header, lines = _read(path)
    if header[: len(_CASE)] != list(_CASE) or not set(FLIP_KINDS) <= set(header):
        raise _foreign(path, header, [*_CASE, "scores", *FLIP_KINDS])
    types = {name: _CASE.get(name, int if name in FLIP_KINDS else float) for name in header}
    rows = []
    for values in _typed(path, lines, types):
        facts = {name: values.pop(name) for name in _CASE}
        flips = {kind: values.pop(kind) for kind in FLIP_KINDS}
        rows.append(CaseRow(**facts, scores=values, flips=flips))
    return rows


def _foreign(path: Path, header: list[str], expected: list[str]) -> FileError:
    return FileError(f"{path} has the columns {header}, expected {expected}; run `calibrate.py run` again")


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and numbered lines of a CSV file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv_rows(file)
            return next(rows, (0, []))[1], list(rows)
    except (csv.Error, UnicodeDecodeError) as problem:
        raise FileError(f"{path} is not a table ({problem}); run `calibrate.py run` again") from problem


def _typed(path: Path, lines: list[tuple[int, list[str]]], types: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for number, line in lines:
        try:
            yield {name: of(text) for (name, of), text in zip(types.items(), line, strict=True)}
        except ValueError as problem:
            raise FileError(f"{path}, line {number}: {line} ({problem})") from problem
