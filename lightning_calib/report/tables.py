"""The main table: every pipeline in the blocks of the paper, its scores, and which of them are best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_calib.calibrators.pipeline import PAPER_BLOCKS, PipelineName
from lightning_calib.report.columns import COLUMNS, Column, choose_decimals, format_metric

BLOCK_TITLES = {
    "a": "Uncalibrated baselines",
    "b": "Translation invariance: matrix scaling against its invariant forms",
    "c": "Translation invariance: local temperatures from logits or from log-probabilities",
    "d": "Decision preservation: class-conditional calibrators, free and constrained",
    "e": "Standard temperature scaling, order preserving",
    "f": "Standard Dirichlet calibration, not preserving",
    "g": "Further pipelines",
}

# The paper lists this pipeline twice: beside matrix scaling, and beside its twin on mean probabilities.
_LISTED_AGAIN = {"f": ("dc(z)",)}


@dataclass(frozen=True)
class Cell:
    """A score with its bounds; None where it could not be computed."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    best: bool = False

    @classmethod
    def from_summary(cls, entry: Mapping[str, float | None] | None) -> "Cell":
        """Read ``{mean, low, high}`` or ``{mean, min, max}``."""
        entry = entry or {}
        return cls(entry.get("mean"), entry.get("low", entry.get("min")), entry.get("high", entry.get("max")))

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return self.value is not None and math.isfinite(self.value)


@dataclass(frozen=True)
class Row:
    """One pipeline.

    Attributes:
        pipeline: its name.
        block: letter of its block.
        cells: scores by the key of their column.
        note: why scores are missing or cover fewer repeats; empty where all is there.
        again: whether the pipeline already stands in an earlier block.
    """

    pipeline: PipelineName
    block: str
    cells: Mapping[str, Cell]
    note: str = ""
    again: bool = False

    @property
    def calibrated(self) -> bool:
        """Whether there is more to the pipeline than pooling."""
        return self.pipeline.calibrator != "identity"

    def shows(self, column: Column) -> bool:
        """Whether a column applies: a pipeline without a calibrator has nothing to flip."""
        return column.key != "flip" or self.calibrated

    def competes(self, column: Column) -> bool:
        """Whether the row's value may be marked as best: not one of fewer repeats, nor a 0 by construction."""
        flips_by_choice = column.key != "flip" or (self.calibrated and self.pipeline.preserves is None)
        return flips_by_choice and not self.note and self.cells[column.key].known


@dataclass(frozen=True)
class MainTable:
    """Rows in the order of the paper, with the precision that each column needs."""

    dataset: str
    columns: tuple[Column, ...]
    decimals: Mapping[str, int]
    rows: tuple[Row, ...]

    def text(self, row: Row, column: Column) -> str:
        """The value of a cell as readers see it."""
        cell = row.cells[column.key]
        return format_metric(column, cell.value if row.shows(column) else None, self.decimals[column.key])

    def interval(self, row: Row, column: Column) -> str:
        """``[low, high]`` of a cell, or nothing where there are no bounds."""
        cell, decimals = row.cells[column.key], self.decimals[column.key]
        if not row.shows(column) or cell.low is None or cell.high is None:
            return ""
        return f"[{format_metric(column, cell.low, decimals)}, {format_metric(column, cell.high, decimals)}]"

    def blocks(self) -> dict[str, list[Row]]:
        """Rows by block, the repeated ones included."""
        grouped: dict[str, list[Row]] = {}
        for row in self.rows:
            grouped.setdefault(row.block, []).append(row)
        return grouped


def block_of(pipeline: str) -> str:
    """Letter of the block that a pipeline belongs to; ``g`` for those that the paper does not list.

    Example:
        >>> block_of("cms_op(p)"), block_of("vs(z)")
        ('d', 'g')
    """
    return next((letter for letter, names in PAPER_BLOCKS.items() if pipeline in names), "g")


def main_table(
    dataset: str,
    pipelines: Sequence[str],
    scores: Mapping[str, Mapping[str, Any]],
    notes: Mapping[str, str] | None = None,
) -> MainTable:
    """Arrange scores as the main table.

    Args:
        dataset: name for the heading.
        pipelines: names of all pipelines that were asked for.
        scores: by pipeline and metric, ``{mean, low, high}`` (``{mean, min, max}`` for ACE), as in ``summary.json``.
        notes: what to say about a pipeline whose scores are missing or incomplete.

    Example:
        >>> table = main_table("toy", ["identity(z)", "ts(z)"], {"ts(z)": {"nll": {"mean": 0.5}}})
        >>> [(str(row.pipeline), row.block, table.text(row, table.columns[0])) for row in table.rows]
        [('identity(z)', 'a', '–'), ('ts(z)', 'e', '0.500')]
    """
    notes = notes or {}
    rows = [
        Row(
            pipeline=PipelineName.parse(name),
            block=block,
            cells={c.key: Cell.from_summary(scores.get(name, {}).get(c.key)) for c in COLUMNS},
            note=notes.get(name, "" if name in scores else "no scores in the results"),
            again=block != block_of(name),
        )
        for block, name in _layout(pipelines)
    ]
    columns = tuple(c for c in COLUMNS if any(row.cells[c.key].known for row in rows)) or COLUMNS
    decimals = {c.key: choose_decimals(c, [row.cells[c.key].value or 0.0 for row in rows]) for c in columns}
    table = MainTable(dataset, columns, decimals, tuple(rows))
    return replace(table, rows=tuple(_mark_best(table)))


def _layout(pipelines: Sequence[str]) -> list[tuple[str, str]]:
    """Block and pipeline of each row, in the order of the paper, then as asked for."""
    placed = []
    for block in BLOCK_TITLES:
        ordered = PAPER_BLOCKS.get(block, pipelines)
        mine = [name for name in ordered if name in pipelines and block_of(name) == block]
        again = [name for name in _LISTED_AGAIN.get(block, ()) if mine and name in pipelines]
        placed += [(block, name) for name in mine + again]
    return placed


def _mark_best(table: MainTable) -> list[Row]:
    """Rows with the best cells marked; values that look the same are equally good, as in the paper."""
    cells = [dict(row.cells) for row in table.rows]
    for column in table.columns:
        competing = [row for row in table.rows if row.competes(column)]
        if not competing:
            continue
        sign = 1 if column.better == "lower" else -1
        winner = min(competing, key=lambda row: sign * (row.cells[column.key].value or 0.0))
        best = table.text(winner, column)
        for row, own in zip(table.rows, cells, strict=True):
            equal = row.competes(column) and table.text(row, column) == best
            own[column.key] = replace(own[column.key], best=equal)
    return [replace(row, cells=own) for row, own in zip(table.rows, cells, strict=True)]
