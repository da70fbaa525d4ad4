"""The section on matched pairs: what translation invariance and decision preservation gain or cost."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_calib.kit.tables import Cell, Column, Row, Table
from lightning_calib.metrics.score import SCORES, Score
from lightning_calib.report.figures import Difference, difference_figure
from lightning_calib.report.glossary import TERMS
from lightning_calib.report.inputs import Inputs, MissingInput
from lightning_calib.report.numbers import MINUS, choose_decimals, format_interval, format_number, format_score
from lightning_calib.report.section import Picture, Section

_ARROW = "\N{RIGHTWARDS ARROW}"
_COLUMNS = (
    Column(f"reference {_ARROW} candidate", left=True, only=("markdown", "latex", "text")),
    Column("candidate", left=True, only=("html",)),
    Column("reference", left=True, only=("html",)),
    Column("metric", left=True),
    Column("difference"),
    Column("interval", tip="Wide enough for the whole table: it leaves 0 out exactly where the verdict is clear."),
    Column("two-level interval", only=("latex",)),
    Column("chance of better", tip="Share of bootstrap replicates in which the candidate is better.", only=("html",)),
    Column("p (Holm)", tip=TERMS["Holm"]),
    Column("verdict", left=True),
)


def comparisons(inputs: Inputs) -> Section:
    """Pairs that differ in one property, with verdicts."""
    found = inputs.results.summary["comparisons"]
    if not found:
        raise MissingInput("No matched pair of the paper has scores of both its pipelines in the same repeats.")
    metrics = list(dict.fromkeys(entry["metric"] for entry in found))
    pairs = list(dict.fromkeys((entry["reference"], entry["candidate"]) for entry in found))
    panels = [_panel(SCORES[metric], found, pairs) for metric in metrics]
    caption = (
        "Each candidate minus its reference. Blue discs: better; orange squares: worse; grey diamonds: within noise. "
        "The bars are as wide as Holm's correction over the whole table asks for: they leave 0 out exactly where the "
        "verdict is clear."
    )
    table = comparison_table(found)
    titles = (f"{entry['family'].capitalize()}: what has it, against what does not" for entry in found)
    rows = tuple(replace(row, block=title) for row, title in zip(table.rows, titles, strict=True))
    return Section(
        "comparisons",
        "Matched comparisons",
        "Pairs of pipelines that differ in one property only, compared case by case.",
        (Picture("comparisons", difference_figure(panels), caption, wide=True),),
        (replace(table, rows=rows),),
    )


def comparison_table(entries: Iterable[dict[str, Any]]) -> Table:
    """Comparisons, as dictionaries with the fields of ``Comparison``, as a table."""
    rows: list[Row] = []
    before: tuple[str, str] | None = None
    for entry in entries:
        pair = (entry["reference"], entry["candidate"])
        rows.append(Row(_cells(entry), style="same" if pair == before else ""))
        before = pair
    caption = (
        "Candidate minus reference, case by case. Interval, p-value and verdict come from cases drawn as wholes, with "
        "Holm's correction over the whole table; in LaTeX the paper's two-level 95 % interval stands beside them."
    )
    return Table("comparisons", caption, _COLUMNS, tuple(rows))


def _cells(entry: dict[str, Any]) -> tuple[Cell, ...]:
    score = SCORES[entry["metric"]]
    mean, low, high = (entry["difference"][key] for key in ("mean", "low", "high"))
    sizes = [] if mean is None else [mean]
    sizes += [] if low is None or high is None else [high - low]
    decimals = choose_decimals(score, sizes) + score.percent
    paper = (entry["two_level"]["low"], entry["two_level"]["high"])
    chance = None if entry["improvement"] is None else 100 * entry["improvement"]
    return (
        Cell(f"{entry['reference']} {_ARROW} {entry['candidate']}"),
        Cell(entry["candidate"], style="code"),
        Cell(entry["reference"], style="code"),
        Cell(f"{score.heading} {score.arrow}", style="metric"),
        Cell(format_score(score, mean, decimals, signed=True)),
        Cell(format_interval(score, low, high, decimals, signed=True)),
        Cell(format_interval(score, *paper, decimals, signed=True)),
        Cell(f"{format_number(chance, 0)} %"),
        Cell(format_number(entry["p_holm"], 3)),
        Cell(entry["verdict"], style=f"badge {entry['verdict'].replace(' ', '-')}"),
    )


def _panel(score: Score, found: list[dict[str, Any]], pairs: list[tuple[str, str]]) -> tuple[str, list[Difference]]:
    by_pair = {(e["reference"], e["candidate"]): e for e in found if e["metric"] == score.key}
    return f"{score.heading} {score.arrow}", [_difference(score, by_pair.get(pair), pair) for pair in pairs]


def _difference(score: Score, entry: dict[str, Any] | None, pair: tuple[str, str]) -> Difference:
    """A difference in the unit of its score; NaN where it could not be computed."""
    bounds = (entry or {}).get("difference", {})
    known = {key: np.nan if value is None else score.shown(value) for key, value in bounds.items()}
    value, low, high = (known.get(key, np.nan) for key in ("mean", "low", "high"))
    verdict = entry["verdict"] if entry else "within noise"
    return Difference(f"{pair[1]} {MINUS} {pair[0]}", value, low, high, verdict)
