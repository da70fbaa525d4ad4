"""Sections that answer with numbers: the recommendation and the main table."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.recommend import doubt
from lightning_calib.experiment.statistics import PAIRED_REPLICATES, Interval
from lightning_calib.report.columns import COLUMN, Column, choose_decimals, format_metric
from lightning_calib.report.glossary import explain, keeps
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import plural
from lightning_calib.report.section import Section
from lightning_calib.report.tables import BLOCK_TITLES

HEADLINE_METRICS = ("nll", "ece", "ba_ece", "dice", "flip")
_CONSTRAINTS = {
    "order": "the order of all classes must stay",
    "argmax": "the segmentation must stay",
    "none": "the segmentation may change",
}


def headline(inputs: Inputs) -> Section:
    """Which pipeline to deploy, what it gains, and how sure that is."""
    choice = inputs.recommendation
    pipeline = PipelineName.parse(choice["pipeline"])
    gains = [gain for key in HEADLINE_METRICS if (gain := _gain(inputs, str(pipeline), COLUMN[key])) is not None]
    data = {
        "pipeline": pipeline,
        "explanation": explain(pipeline),
        "keeps": keeps(pipeline.preserves),
        "baseline": inputs.uncalibrated(pipeline),
        "gains": gains,
        "sentence": _sentence(gains, pipeline, inputs),
        "trust": _trust(inputs, choice),
        "others": _others(inputs),
        "notes": inputs.notes,
    }
    return Section("answer", "The answer", template="headline.html", data=data)


def _gain(inputs: Inputs, name: str, column: Column) -> dict[str, Any] | None:
    """A metric before and after calibration, with the paired difference over the repeats that both have."""
    baseline = inputs.uncalibrated(PipelineName.parse(name))
    shared = [r for r in inputs.repeats_of(name) if r in inputs.repeats_of(baseline)]
    if not shared:
        return None
    before, after = (inputs.results.scores(pipeline, column.key) for pipeline in (baseline, name))
    tables = [np.stack([before[r], after[r], after[r] - before[r]], axis=1) for r in shared]
    return _told_gain(column, *inputs.results.intervals(tables, shared, PAIRED_REPLICATES))


def _told_gain(column: Column, before: Interval, after: Interval, change: Interval) -> dict[str, Any]:
    decimals = choose_decimals(column, [before.mean, after.mean])
    low, high = (format_metric(column, bound, decimals, signed=True) for bound in (change.low, change.high))
    sure = change.low > 0 or change.high < 0
    better = (change.mean < 0) == (column.better == "lower")
    return {
        "column": column,
        "before": format_metric(column, before.mean, decimals),
        "after": format_metric(column, after.mean, decimals),
        "change": format_metric(column, change.mean, decimals, signed=True),
        "interval": f"[{low}, {high}]" if change.low != change.high else "",
        "verdict": "unchanged" if change.mean == 0 else "unclear" if not sure else "better" if better else "worse",
    }


def _sentence(gains: Sequence[dict[str, Any]], pipeline: PipelineName, inputs: Inputs) -> str:
    """The headline in one sentence."""
    told = {gain["column"].key: gain for gain in gains}
    if pipeline.calibrator == "identity":
        return "No calibrator that qualifies had a lower NLL on val than the ensemble as it is: leave it so."
    if "ece" not in told:
        return f"There are no scores of {inputs.uncalibrated(pipeline)} in this run to compare it with."
    ece, nll = told["ece"], told["nll"]
    verb = {"better": "lowers", "worse": "raises"}.get(ece["verdict"], "does not clearly change")
    return (
        f"Against the uncalibrated ensemble it {verb} the expected calibration error: {ece['before']} before, "
        f"{ece['after']} after ({_change(ece)}). The negative log-likelihood goes from {nll['before']} to "
        f"{nll['after']} ({_change(nll)})."
    )


def _change(gain: dict[str, Any]) -> str:
    """A difference, with its interval where there is one."""
    return f"difference {gain['change']}" + (f", 95 % interval {gain['interval']}" if gain["interval"] else "")


def _trust(inputs: Inputs, choice: dict[str, Any]) -> list[str]:
    """How far the choice can be trusted, in sentences."""
    nll = COLUMN["nll"]
    regret = {key: format_metric(nll, choice["regret"][key], 4) for key in ("mean", "low", "high")}
    repeats, rivals = len(inputs.results.repeats), len(choice["val_nll"])
    told = [
        f"Chosen on val by the lowest NLL among {plural(rivals, 'pipeline')} that qualified; "
        f"{choice['votes']} of {plural(repeats, 'repeat')} would choose it alone.",
        f"On test, {'it' if choice['best'] == choice['pipeline'] else choice['best']} turned out best.",
    ]
    if choice["regret"]["mean"] != 0:
        told[-1] += (
            f" Letting each repeat choose on its val cost {regret['mean']} [{regret['low']}, {regret['high']}] "
            "in test NLL against that."
        )
    close = choice["within_noise"]
    if close:
        told.append(f"Not to be told from it by test NLL, within noise: {', '.join(close)}.")
    else:
        told.append("Its test NLL differs from that of every other pipeline that qualifies by more than noise.")
    if warning := doubt(choice["pipeline"], choice["best"], close):
        told.append(warning)
    return told


def _others(inputs: Inputs) -> list[dict[str, Any]]:
    """The choice under each constraint, side by side."""
    told = []
    for constraint, meaning in _CONSTRAINTS.items():
        choice = inputs.results.summary["recommendation"].get(constraint)
        entry: dict[str, Any] = {"constraint": meaning, "pipeline": None, "mine": constraint == inputs.preserve}
        if choice is not None:
            scores = {key: choice["test"].get(key, {}).get("mean") for key in HEADLINE_METRICS}
            told_scores = {key: format_metric(COLUMN[key], value, _decimals(key)) for key, value in scores.items()}
            entry |= {"pipeline": choice["pipeline"], "scores": told_scores}
        told.append(entry)
    return told


def _decimals(key: str) -> int:
    return 2 if key == "flip" else COLUMN[key].decimals


def scores(inputs: Inputs) -> Section:
    """The main table."""
    table = inputs.table
    data = {
        "table": table,
        "blocks": BLOCK_TITLES,
        "explain": explain,
        "recommended": inputs.deployed,
    }
    repeats = plural(len(inputs.results.repeats), "repeat")
    lead = f"Test scores on {table.dataset}, averaged over cases and over {repeats}, in the blocks of the paper."
    notices = tuple(f"{name}: {note}" for name, note in inputs.notes.items())
    return Section("scores", "All pipelines", lead, "scores.html", notices=notices, data=data)
