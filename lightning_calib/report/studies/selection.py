"""The section on what `val` promised and `test` brought."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.columns import COLUMN, choose_decimals, format_metric
from lightning_calib.report.figures import STYLES
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.table import StudyTable
from lightning_calib.report.style import INK, look, new_figure
from lightning_calib.studies.selection import NAME, SelectionRow

KEY, TITLE = "study-selection", "What val promised, and test brought"


def selection(inputs: Inputs) -> Section:
    """Promises and what came of them, by pipeline and by fit."""
    facts = read_facts(inputs, NAME)
    rows = read_rows(study_folder(inputs, NAME) / "selection.csv", SelectionRow)
    lead = (
        "Fits are chosen by their NLL on val. Where val resembles test, test brings what val promised; where it does "
        "not, search and selection protect against nothing."
    )
    caption = (
        "Every fit: the change of NLL on val by which it was chosen, and its change on test, against no calibration. "
        "On the line the promise was kept; above 0 calibration did harm. Named: of each repeat the fit that fell "
        "furthest behind."
    )
    return Section(
        KEY,
        TITLE,
        lead,
        "study.html",
        pictures=(Picture("selection", selection_figure(rows), caption),),
        data={"tables": [_means(facts["pipelines"]), _fits(rows)]},
    )


def selection_figure(rows: Sequence[SelectionRow]) -> Figure:
    """Brought against promised, one style a repeat.

    Example:
        >>> len(selection_figure([SelectionRow(0, "ts(z)", -0.1, -0.05, 0.0, 0.0)]).axes)
        1
    """
    with look():
        figure = new_figure(5.2, 4.2)
        axes = figure.subplots()
        for repeat in sorted({row.repeat for row in rows}):
            own = [row for row in rows if row.repeat == repeat]
            style = {key: value for key, value in STYLES[repeat % len(STYLES)].items() if key != "linestyle"}
            axes.plot(
                [row.promised for row in own],
                [row.brought for row in own],
                linestyle="none",
                label=f"repeat {repeat}",
                **style,  # type: ignore[arg-type]  # strings of a known kind
            )
            _name(axes, max(own, key=lambda row: row.brought - row.promised))
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.9)
        axes.axhline(0, color=INK, linewidth=0.9, linestyle=":")
        axes.set_xlabel("change of NLL on val: promised")
        axes.set_ylabel("change of NLL on test: brought")
        figure.legend(loc="outside upper left", ncols=4)
    return figure


def _name(axes: Axes, row: SelectionRow) -> None:
    """Write the pipeline beside a fit that fell behind its promise."""
    if row.brought > row.promised:
        place = (row.promised, row.brought)
        axes.annotate(row.pipeline, place, (5, 4), textcoords="offset points", fontsize=7.5, color=INK)


def _means(entries: Sequence[dict[str, float | str]]) -> StudyTable:
    """Means over repeats."""
    column = COLUMN["nll"]
    decimals = choose_decimals(column, [float(entry[key]) for entry in entries for key in ("promised", "brought")])
    body = [
        [str(entry["pipeline"])]
        + [format_metric(column, float(entry[key]), decimals, signed=True) for key in ("promised", "brought", "worst")]
        + [f"{entry['lost']} of {entry['repeats']}"]
        for entry in entries
    ]
    head = ("pipeline", "promised by val", "brought by test", "worst repeat", "repeats that lost")
    caption = "Change of NLL against no calibration with the same pooling, over all voxels; means over repeats."
    return StudyTable("selection", caption, head, body)


def _fits(rows: Sequence[SelectionRow]) -> StudyTable:
    """Every fit with the penalties that were chosen."""
    column = COLUMN["nll"]
    decimals = choose_decimals(column, [value for row in rows for value in (row.promised, row.brought)])
    body = [
        [f"{row.pipeline}, repeat {row.repeat}"]
        + [format_metric(column, value, decimals, signed=True) for value in (row.promised, row.brought)]
        + [format_number(value, 4) for value in (row.lam, row.mu)]
        for row in rows
    ]
    caption = "Every fit, with the penalties on weights (lam) and biases (mu) that the search chose."
    return StudyTable("selection-fits", caption, ("fit", "promised by val", "brought by test", "lam", "mu"), body)
