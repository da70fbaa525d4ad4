"""Sections that answer with numbers: the recommendation and the main table."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.advice import GroupAdvice, describe_groups, doubt
from lightning_calib.experiment.statistics import PAIRED_REPLICATES, Interval
from lightning_calib.kit.tables import Cell, Column, Row, Table
from lightning_calib.metrics.score import SCORES, Score, main_scores
from lightning_calib.outputs.folds import SENTENCE
from lightning_calib.report.glossary import explain, keeps
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import choose_decimals, format_interval, format_score, plural
from lightning_calib.report.section import Section

_CONSTRAINTS = {
    "order": "the order of all classes must stay",
    "argmax": "the segmentation must stay",
    "none": "the segmentation may change",
}


def headline(inputs: Inputs) -> Section:
    """Which pipeline to deploy, what it gains, and how sure that is."""
    if (selected := inputs.selected) is not None:
        return _selected_headline(inputs, selected)
    choice = inputs.recommendation
    pipeline = PipelineName.parse(choice["pipeline"])
    gains = [gain for score in headline_scores() if (gain := _gain(inputs, str(pipeline), score)) is not None]
    data = {
        "pipeline": pipeline,
        "explanation": explain(pipeline),
        "keeps": keeps(pipeline.preserves),
        "baseline": inputs.uncalibrated(pipeline),
        "gains": gains,
        "sentence": _sentence(gains, pipeline, inputs),
        "trust": [*_trust(inputs, choice), *_folds(inputs)],
    }
    return Section("answer", "The answer", tables=(_others(inputs),), template="headline.html", data=data)


def _selected_headline(inputs: Inputs, advice: GroupAdvice) -> Section:
    """The same for a pipeline that was selected by groups: the scores are those of the procedure."""
    pipeline = PipelineName.parse(advice.pipeline)
    told, *trust = describe_groups(advice).splitlines()
    gain = told.partition(": ")[2]
    sentence = told if pipeline.calibrator == "identity" else gain[0].upper() + gain[1:]
    held = [(score, advice.scores[score.key]) for score in headline_scores() if score.key in advice.scores]
    data = {
        "pipeline": pipeline,
        "explanation": explain(pipeline),
        "keeps": keeps(pipeline.preserves),
        "baseline": "identity(p)",
        "gains": [_told_gain(score, parts["before"], parts["after"], parts["change"]) for score, parts in held],
        "sentence": sentence,
        "trust": [*trust, "Selected by groups; the next section shows how.", *_folds(inputs)],
    }
    return Section("answer", "The answer", tables=(_others(inputs),), template="headline.html", data=data)


def headline_scores() -> list[Score]:
    """Scores that tell what calibration gains: those that are compared, and what it costs in flips."""
    return [score for score in main_scores() if score.compared or score.key == "flip"]


def _gain(inputs: Inputs, name: str, score: Score) -> dict[str, Any] | None:
    """A metric before and after calibration, with the paired difference over the repeats that both have."""
    baseline = inputs.uncalibrated(PipelineName.parse(name))
    shared = [r for r in inputs.repeats_of(name) if r in inputs.repeats_of(baseline)]
    if not shared:
        return None
    before, after = (inputs.results.scores(pipeline, score.key) for pipeline in (baseline, name))
    tables = [np.stack([before[r], after[r], after[r] - before[r]], axis=1) for r in shared]
    return _told_gain(score, *inputs.results.intervals(tables, shared, PAIRED_REPLICATES))


def _told_gain(score: Score, before: Interval, after: Interval, change: Interval) -> dict[str, Any]:
    decimals = choose_decimals(score, [before.mean, after.mean])
    interval = format_interval(score, change.low, change.high, decimals, signed=True)
    sure = change.low > 0 or change.high < 0
    better = (change.mean < 0) == (score.better == "lower")
    return {
        "score": score,
        "before": format_score(score, before.mean, decimals),
        "after": format_score(score, after.mean, decimals),
        "change": format_score(score, change.mean, decimals, signed=True),
        "interval": interval if change.low != change.high else "",
        "verdict": "unchanged" if change.mean == 0 else "unclear" if not sure else "better" if better else "worse",
    }


def _sentence(gains: Sequence[dict[str, Any]], pipeline: PipelineName, inputs: Inputs) -> str:
    """The headline in one sentence."""
    told = {gain["score"].key: gain for gain in gains}
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
    nll = SCORES["nll"]
    regret = {key: format_score(nll, choice["regret"][key], 4) for key in ("mean", "low", "high")}
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


def _folds(inputs: Inputs) -> list[str]:
    """What calibrators of an out-of-fold store are good for; nothing for other stores."""
    return [SENTENCE] if inputs.results.dataset.get("folds") else []


def _others(inputs: Inputs) -> Table:
    """The choice under each constraint, side by side."""
    chosen = headline_scores()
    rows = []
    for constraint, meaning in _CONSTRAINTS.items():
        choice = _choice(inputs, constraint)
        cells = [Cell(meaning), Cell("no pipeline with scores in all repeats qualifies"), *(Cell() for _ in chosen)]
        if choice is not None:
            means = ((score, choice["test"].get(score.key, {}).get("mean")) for score in chosen)
            told = (Cell(format_score(score, mean, score.decimals + (score.key == "flip"))) for score, mean in means)
            cells = [Cell(meaning), Cell(choice["pipeline"], style="code"), *told]
        rows.append(Row(tuple(cells), style="mine" if constraint == inputs.preserve else ""))
    heads = (Column(score.heading, arrow=score.arrow) for score in chosen)
    return Table("demands", "", (Column("If …", left=True), Column("deploy", left=True), *heads), tuple(rows))


def _choice(inputs: Inputs, constraint: str) -> dict[str, Any] | None:
    """The pipeline for a constraint, and its test scores."""
    summary = inputs.results.summary
    if not inputs.results.selects_by_groups:
        found: dict[str, Any] | None = summary["recommendation"].get(constraint)
        return found
    selected = summary["selection"].get(constraint)
    if selected is None:
        return None
    after = {key: parts["after"] for key, parts in selected["scores"].items()}
    return {"pipeline": selected["pipeline"], "test": after}


def scores(inputs: Inputs) -> Section:
    """The main table."""
    table = inputs.table
    keys = {column.key for column in table.columns}
    data = {"scores": [score for score in main_scores() if score.key in keys]}
    repeats, dataset = plural(len(inputs.results.repeats), "repeat"), inputs.results.dataset["name"]
    lead = f"Test scores on {dataset}, averaged over cases and over {repeats}, in the blocks of the paper."
    notices = tuple(f"{name}: {note}" for name, note in inputs.notes.items())
    return Section("scores", "All pipelines", lead, (), (table,), notices, "scores.html", data)
