"""The section on selection by groups: the ladder and its tests, the gain of each test group."""

from typing import Any

from lightning_calib.experiment.advice import GroupAdvice, describe_groups
from lightning_calib.kit.tables import Cell, Column, Row, Table
from lightning_calib.report.figures import Difference, difference_figure
from lightning_calib.report.inputs import Inputs, spread
from lightning_calib.report.numbers import format_number
from lightning_calib.report.section import Picture, Section

TITLE = "Selection by groups"
MOST_DOTS = 40  # groups that a figure shows

_COLUMNS = (
    Column("candidate", left=True),
    Column("strength", tip="Of the ridge towards temperature scaling, by the one-standard-error rule."),
    Column("held-out NLL", arrow="↓", tip="Mean over groups; each group is judged by fits that had not seen it."),
    Column("against", left=True, tip="What it would have replaced."),
    Column("difference", tip="In held-out NLL, mean over groups."),
    Column("p", tip="One-sided, corrected for fits that share data. A stack needs a lead of one standard error only."),
    Column("p, identity(p)", tip="The same against the ensemble as it is; nothing is accepted that fails it."),
    Column("accepted", left=True),
)


def selection(inputs: Inputs) -> Section | None:
    """How the pipeline was chosen; None where the run did not select by groups."""
    results = inputs.results
    advice, record = inputs.selected, results.selection()
    if advice is None or record is None:
        return None
    rungs = record.choices[inputs.preserve]["rungs"]
    lead = (
        "Candidates from the simplest to the richest, each fitted without some groups and judged on them. A candidate "
        "replaces the one before only where groups agree that it is better. "
    ) + " ".join(describe_groups(advice).splitlines())
    return Section(
        "selection",
        TITLE,
        lead,
        (_gains(advice),) if advice.by_group else (),
        (ladder_table(rungs, record.level),) if rungs else (),
        () if rungs else (f"There was no ladder to go up: {advice.reason}.",),
    )


def ladder_table(rungs: list[dict[str, Any]], level: str) -> Table:
    """What became of each candidate on all cases.

    Args:
        rungs: as ``selection.json`` holds them.
        level: level of the groups.
    """
    caption = f"The ladder on all cases, by groups of the level {level}."
    return Table("ladder", caption, _COLUMNS, tuple(Row(_cells(rung)) for rung in rungs))


def _cells(rung: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        Cell(rung["pipeline"], style="code"),
        Cell(format_number(float(rung["strength"]), 3)),
        Cell(format_number(rung["nll"], 4)),
        Cell(rung["versus"], style="code"),
        Cell(format_number(rung["difference"], 4, signed=True)),
        Cell(format_number(rung["p_value"], 3)),
        Cell(format_number(rung.get("p_gain"), 3)),
        Cell("yes" if rung["accepted"] else "no", style="yes" if rung["accepted"] else "no"),
    )


def _gains(advice: GroupAdvice) -> Picture:
    """A dot a test group."""
    ranked = sorted(advice.by_group.items(), key=lambda item: -item[1])
    dots = [
        Difference(group, gain, gain, gain, "better" if gain > 0 else "worse" if gain < 0 else "within noise")
        for group, gain in spread(ranked, MOST_DOTS)
    ]
    some = f", {MOST_DOTS} of {len(ranked)} from the best to the worst" if len(ranked) > MOST_DOTS else ""
    caption = (
        f"Test NLL that the selection saves against identity(p), by group{some}; mean over cases and repeats. Blue "
        "discs gain, orange squares lose."
    )
    return Picture("selection-gains", difference_figure([("NLL saved", dots)]), caption)
