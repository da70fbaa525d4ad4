"""The section with the main table."""

from lightning_calib.metrics.score import main_scores
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.main_table import BOLD, interval_legend
from lightning_calib.report.numbers import plural
from lightning_calib.report.section import Section


def scores(inputs: Inputs) -> Section:
    """The main table."""
    table = inputs.table
    keys = {column.key for column in table.columns}
    data = {
        "scores": [score for score in main_scores() if score.key in keys],
        "bold": BOLD,
        "legend": interval_legend(inputs.scores_of(inputs.intervals), inputs.intervals),
    }
    repeats, dataset = plural(len(inputs.results.repeats), "repeat"), inputs.results.dataset["name"]
    lead = f"Test scores on {dataset}, averaged over cases and over {repeats}, in the blocks of the paper."
    notices = tuple(f"{name}: {note}" for name, note in inputs.notes.items())
    return Section("scores", "All pipelines", lead, (), (table,), notices, "scores.html", data)
