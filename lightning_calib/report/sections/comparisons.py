"""The section on matched pairs: what translation invariance and decision preservation gain or cost."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lightning_calib.report.columns import COLUMN, Column, choose_decimals, format_metric
from lightning_calib.report.figures import Difference, difference_figure
from lightning_calib.report.inputs import Inputs, MissingInput
from lightning_calib.report.numbers import MINUS, format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.table import StudyTable


def comparisons(inputs: Inputs) -> Section:
    """Pairs that differ in one property, with verdicts."""
    found = inputs.results.summary["comparisons"]
    if not found:
        raise MissingInput("No matched pair of the paper has scores of both its pipelines in the same repeats.")
    metrics = list(dict.fromkeys(entry["metric"] for entry in found))
    rows = [_comparison_row(entry) for entry in found]
    pairs = list(dict.fromkeys((entry["reference"], entry["candidate"]) for entry in found))
    panels = [_panel(COLUMN[metric], found, pairs) for metric in metrics]
    caption = (
        "Each candidate minus its reference, with 95 % intervals. Blue discs: better; orange squares: worse; "
        "diamonds: within noise, after Holm's correction over the whole table."
    )
    return Section(
        "comparisons",
        "Matched comparisons",
        "Pairs of pipelines that differ in one property only, compared case by case.",
        "comparisons.html",
        pictures=(Picture("comparisons", difference_figure(panels), caption, wide=True),),
        data={"rows": rows},
    )


def comparison_table(entries: Iterable[dict[str, Any]]) -> StudyTable:
    """Comparisons, as dictionaries with the fields of ``Comparison``, as a table for files and terminals."""
    found = (_comparison_row(entry) for entry in entries)
    rows = [
        [
            f"{row['reference']} \N{RIGHTWARDS ARROW} {row['candidate']}",
            f"{row['column'].heading} {row['column'].arrow}",
        ]
        + [row[key] for key in ("mean", "interval", "clustered_interval", "p", "verdict")]
        for row in found
    ]
    caption = (
        "Candidate minus reference, case by case: the paper's two-level interval, and the one from cases drawn as "
        "wholes, from which p-values and verdicts come (Holm's correction over the whole table)."
    )
    head = (
        "reference \N{RIGHTWARDS ARROW} candidate",
        "metric",
        "difference",
        "interval",
        "by case",
        "p (Holm)",
        "verdict",
    )
    return StudyTable("comparisons", caption, head, rows)


def _panel(column: Column, found: list[dict[str, Any]], pairs: list[tuple[str, str]]) -> tuple[str, list[Difference]]:
    by_pair = {(e["reference"], e["candidate"]): e for e in found if e["metric"] == column.key}
    told = [_difference(column, by_pair.get(pair), pair) for pair in pairs]
    return f"{column.heading} {column.arrow}", told


def _difference(column: Column, entry: dict[str, Any] | None, pair: tuple[str, str]) -> Difference:
    """A difference in the unit of its column; NaN where it could not be computed."""
    bounds = (entry or {}).get("difference", {})
    known = {key: np.nan if value is None else column.shown(value) for key, value in bounds.items()}
    value, low, high = (known.get(key, np.nan) for key in ("mean", "low", "high"))
    verdict = entry["verdict"] if entry else "within noise"
    return Difference(f"{pair[1]} {MINUS} {pair[0]}", value, low, high, verdict)


def _comparison_row(entry: dict[str, Any]) -> dict[str, Any]:
    column = COLUMN[entry["metric"]]
    values = [entry["difference"][key] for key in ("mean", "low", "high")]
    width = [values[2] - values[1]] if None not in values else []
    decimals = choose_decimals(column, [value for value in values[:1] if value is not None] + width) + column.percent
    mean, low, high = (format_metric(column, value, decimals, signed=True) for value in values)
    wide = [format_metric(column, entry["clustered"][key], decimals, signed=True) for key in ("low", "high")]
    return {
        **entry,
        "column": column,
        "mean": mean,
        "value": entry["difference"]["mean"],
        "interval": f"[{low}, {high}]",
        "clustered_interval": f"[{', '.join(wide)}]",
        "chance": format_number(None if entry["improvement"] is None else 100 * entry["improvement"], 0),
        "p": format_number(entry["p_holm"], 3),
    }
