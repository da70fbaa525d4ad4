"""The section on classes: how well each is found, and what its probability is worth."""

import math
from collections.abc import Sequence

import numpy as np

from lightning_calib.experiment.rows import ClassRow
from lightning_calib.functional.binning import BinTable
from lightning_calib.kit.tables import Cell, Column, Row, Table
from lightning_calib.report.curves import ClassCurve, class_figure
from lightning_calib.report.inputs import Inputs, MissingInput
from lightning_calib.report.numbers import format_count, format_number
from lightning_calib.report.section import Picture, Section

PANEL_BINS = 10
_MOST = 24  # panels; with more classes, those of the most voxels

_COLUMNS = (
    Column("class", left=True),
    Column("voxels", tip="Test voxels of the class, all repeats together."),
    Column("predicted", tip="Test voxels that the uncalibrated ensemble predicts so."),
    Column("Dice (%)", arrow="↑", tip="Uncalibrated; mean over the cases that have the class in target or prediction."),
    Column("calibrated", arrow="↑"),
    Column(
        "class-wise ECE", arrow="↓", tip="Uncalibrated: gaps between the class's probability and its share, 50 bins."
    ),
    Column("calibrated", arrow="↓"),
)


def by_class(inputs: Inputs) -> Section:
    """Dice, voxels and reliability of each class, before and after the recommended pipeline."""
    plain, chosen = inputs.results.summary["uncalibrated"] or str(inputs.recommended), str(inputs.recommended)
    rows = {name: _by_label(inputs, name) for name in (plain, chosen)}
    if not all(rows.values()):
        raise MissingInput(
            "These results are of an earlier version, which kept no sums of classes: remove the files evaluation.json "
            "below the calibration folder and run again to have them."
        )
    tables = {name: inputs.results.class_bins(name) for name in (plain, chosen)}
    errors = {name: table.expected_error().tolist() for name, table in tables.items()}
    names = inputs.results.dataset["class_names"]
    body = tuple(
        Row(_cells(name, [rows[n][label] for n in (plain, chosen)], [errors[n][label] for n in (plain, chosen)]))
        for label, name in enumerate(names)
    )
    shown = sorted(range(len(names)), key=lambda label: -_voxels(rows[plain][label]))[:_MOST]
    curves = {names[c]: {n: class_curve(tables[n], c) for n in dict.fromkeys((plain, chosen))} for c in sorted(shown)}
    caption = (
        f"Where the model gives a class a probability of 30 %, 30 % of voxels should be of it: on the dashed line they "
        f"are. {PANEL_BINS} bins; all test voxels of all repeats."
    )
    lead = f"Which classes are found, and what are their probabilities worth? From {plain} to {chosen}."
    table = Table("classes", "Test voxels of all repeats; Dice is the mean over cases and repeats.", _COLUMNS, body)
    return Section("by-class", "By class", lead, (Picture("classes", class_figure(curves), caption),), (table,))


def _by_label(inputs: Inputs, pipeline: str) -> dict[int, list[ClassRow]]:
    found: dict[int, list[ClassRow]] = {}
    for row in (row for repeat in inputs.results.repeats for row in inputs.results.classes(repeat, pipeline)):
        found.setdefault(row.label, []).append(row)
    return found


def _voxels(rows: Sequence[ClassRow]) -> int:
    return sum(row.voxels for row in rows)


def _cells(name: str, rows: Sequence[Sequence[ClassRow]], errors: Sequence[float]) -> tuple[Cell, ...]:
    """A class before and after."""
    voxels, predicted = _voxels(rows[0]), sum(row.predicted for row in rows[0])
    never = voxels > 0 and predicted == 0
    dice = [[row.dice for row in own if not math.isnan(row.dice)] for own in rows]
    means = [100 * float(np.mean(values)) if values else None for values in dice]
    return (
        Cell(name),
        Cell(format_count(voxels)),
        Cell("never", style="badge worse") if never else Cell(format_count(predicted)),
        *(Cell(format_number(mean, 1)) for mean in means),
        *(Cell(format_number(error, 4)) for error in errors),
    )


def class_curve(table: BinTable, label: int) -> ClassCurve:
    """The curve of a class in few bins."""
    own = BinTable(*(column[label] for column in table)).coarsen(PANEL_BINS)
    return ClassCurve(own.mean_confidence().numpy(), own.accuracy().numpy())
