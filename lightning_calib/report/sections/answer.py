"""The first screen: what calibration does in one sentence and a picture, what changed, what to be careful about."""

from typing import Any

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.advice import GroupAdvice, describe_groups, doubt
from lightning_calib.experiment.concerns import concerns
from lightning_calib.experiment.reliability import Curve, ace_draws, reliability_curve
from lightning_calib.experiment.statistics import PAIRED_REPLICATES, Interval, percentile_interval
from lightning_calib.kit.program import command
from lightning_calib.kit.tables import Cell, Column, Row, Table
from lightning_calib.metrics.score import SCORES, Score, main_scores
from lightning_calib.outputs.folds import SENTENCE
from lightning_calib.report.curves import FEWEST, before_after_figure
from lightning_calib.report.division import ENOUGH, conclusion
from lightning_calib.report.glossary import explain, keeps
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import choose_decimals, format_interval, format_score, plural
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.sections.provenance import group_counts

_CONSTRAINTS = {
    "order": "the order of all classes must stay",
    "argmax": "the segmentation must stay",
    "none": "the segmentation may change",
}
_PERCENT = "\N{NO-BREAK SPACE}%"
_TOLD = 0.9  # the confidence that the sentence is about


def headline(inputs: Inputs) -> Section:
    """Which pipeline to deploy, what it does to confidences and scores, and how sure that is."""
    selected = inputs.selected
    chosen = inputs.recommendation["pipeline"] if selected is None else selected.pipeline
    pipeline, plain = PipelineName.parse(chosen), inputs.results.summary["uncalibrated"]
    curves = [_curve(inputs, name) for name in (plain, chosen)]
    changes = _changes(inputs, plain, chosen) if selected is None else _selected_changes(selected)
    data = {
        "pipeline": pipeline,
        "explanation": explain(pipeline),
        "keeps": keeps(pipeline.preserves),
        "baseline": plain,
        "pooled_otherwise": bool(plain) and plain != inputs.uncalibrated(pipeline),
        "gains": [_told_gain(score, *values) for score, *values in sorted(changes, key=_size, reverse=True)],
        "sentence": _sentence(pipeline, plain, *curves),
        "warnings": _warnings(inputs, chosen),
        "trust": _trust(inputs, selected),
        "commands": _commands(inputs),
    }
    pictures = (_picture(plain, chosen, selected, *curves),) if all(curves) else ()
    return Section("answer", "The answer", "", pictures, (_others(inputs),), template="headline.html", data=data)


def headline_scores() -> list[Score]:
    """Scores that tell what calibration gains: those that are compared, ACE, and what it costs in flips."""
    return [score for score in main_scores() if score.compared or score.key in ("ace", "flip")]


def _curve(inputs: Inputs, name: str | None) -> Curve | None:
    held = name is not None and inputs.repeats_of(name)
    return reliability_curve(inputs.results, str(name)) if held else None


def _sentence(pipeline: PipelineName, plain: str | None, before: Curve | None, after: Curve | None) -> str:
    """What confidences are worth before and after, for readers who know nothing of calibration."""
    leave = "No calibrator that qualifies did better than the ensemble as it is: leave it so. "
    if plain is None:
        return leave if pipeline.calibrator == "identity" else "This run has no uncalibrated ensemble to compare with."
    if before is None or after is None or (place := _place(before, after)) is None:
        return leave if pipeline.calibrator == "identity" else f"What it gains over {plain} is below."
    certain = 100 * (place + 0.5) / len(before.voxels)
    said = f"Of the voxels that the ensemble calls {certain:.0f}{_PERCENT} certain, "
    if pipeline.calibrator == "identity":
        return f"{leave}{said}{_right(after, place)} were right."
    return f"{said}{_right(before, place)} were right; calibrated, {_right(after, place)}."


def _right(curve: Curve, place: int) -> str:
    low, value, high = (100 * float(part[place]) for part in (curve.low, curve.accuracy, curve.high))
    return f"{value:.0f}{_PERCENT} ({low:.0f} to {high:.0f})"


def _place(before: Curve, after: Curve) -> int | None:
    """The bin nearest to a confidence of 90 % that holds enough voxels in both curves."""
    held = np.flatnonzero((before.voxels >= FEWEST) & (after.voxels >= FEWEST))
    centres = (held + 0.5) / len(before.voxels)
    return int(held[np.argmin(np.abs(centres - _TOLD))]) if len(held) else None


def _picture(
    plain: str, chosen: str, selected: GroupAdvice | None, before: Curve | None, after: Curve | None
) -> Picture:
    assert before is not None
    assert after is not None
    curves = {f"uncalibrated, {plain}": before} | ({} if chosen == plain else {f"calibrated, {chosen}": after})
    caption = (
        "How often voxels of a given confidence are right; on the dashed line confidences can be taken at their word. "
        "Bands: 95 % intervals. All test voxels of all repeats, in 15 bins."
    )
    if selected is not None and chosen != plain:
        caption += (
            f" Sentence and curve show {chosen} as each repeat fitted it, with the strength that its val liked best; "
            "the cards show the selection by groups."
        )
    return Picture("answer", before_after_figure(curves), caption)


Change = tuple[Score, Interval, Interval, Interval]  # before, after, difference


def _changes(inputs: Inputs, plain: str | None, chosen: str) -> list[Change]:
    """Scores before and after calibration with paired differences, over the repeats that both have."""
    shared = [r for r in inputs.repeats_of(chosen) if plain and r in inputs.repeats_of(plain)]
    if plain is None or not shared or chosen == plain:
        return []
    found = []
    for score in headline_scores():
        if score.pooled:
            found += _pooled_change(inputs, score, plain, chosen)
            continue
        before, after = (inputs.results.scores(pipeline, score.key) for pipeline in (plain, chosen))
        tables = [np.stack([before[r], after[r], after[r] - before[r]], axis=1) for r in shared]
        unchanged, changed, change = inputs.results.intervals(tables, shared, PAIRED_REPLICATES)
        found.append((score, unchanged, changed, change))
    return found


def _pooled_change(inputs: Inputs, score: Score, plain: str, chosen: str) -> list[Change]:
    """ACE before and after, whose replicates are those of the same draws of cases."""
    if (found := ace_draws(inputs.results, [plain, chosen])) is None:
        return []
    means, drawn = (np.concatenate([part, np.diff(part)], axis=-1) for part in found)
    low, high = percentile_interval(drawn)
    before, after, change = (Interval(*map(float, parts)) for parts in zip(means, low, high, strict=True))
    return [(score, before, after, change)]


def _selected_changes(advice: GroupAdvice) -> list[Change]:
    """The same for a pipeline that was selected by groups: the scores are those of the procedure."""
    held = [(score, advice.scores[score.key]) for score in headline_scores() if score.key in advice.scores]
    return [(score, parts["before"], parts["after"], parts["change"]) for score, parts in held]


def _size(change: Change) -> float:
    """How much a score changed, relative to what it was; flips relative to all voxels."""
    score, before, _, difference = change
    return abs(difference.mean) / (1.0 if score.key == "flip" else max(abs(before.mean), 1e-12))


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


def _warnings(inputs: Inputs, chosen: str) -> list[str]:
    """What matters for whoever deploys it: classes, cases, groups."""
    counts = group_counts(inputs)
    few = [each for each in counts if each.torn or each.parts["test"][0] < ENOUGH]
    found = [*concerns(inputs.results, chosen), *([conclusion(counts)] if few else [])]
    if inputs.selected is None:
        choice = inputs.recommendation
        found += [told for told in [doubt(choice["pipeline"], choice["best"], choice["within_noise"])] if told]
    return found + ([SENTENCE] if inputs.results.dataset.get("folds") else [])


def _trust(inputs: Inputs, selected: GroupAdvice | None) -> list[str]:
    """How far the choice can be trusted, in sentences."""
    if selected is not None:
        return [*describe_groups(selected).splitlines(), "Selected by groups; the next section shows how."]
    choice, nll = inputs.recommendation, SCORES["nll"]
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
    if close := choice["within_noise"]:
        return [*told, f"Not to be told from it by test NLL, within noise: {', '.join(close)}."]
    return [*told, "Its test NLL differs from that of every other pipeline that qualifies by more than noise."]


def _commands(inputs: Inputs) -> list[tuple[str, str]]:
    """What to do next, and the lines that do it."""
    folder = inputs.results.folder
    deployed = folder.parent / "deployed"
    keep = [] if inputs.preserve == "order" else ["--preserve", inputs.preserve]
    images = ["--images", "new_images", "--destination", "calibrated"]
    return [
        ("Make the calibrated model", command(["calibrate", "deploy", "--calibration", str(folder), *keep])),
        ("Use it on new images", command(["calibrate", "apply", "--deployed", str(deployed), *images])),
        ("Look for mistakes in the data", command(["calibrate", "doctor", "--outputs", _outputs(inputs)])),
    ]


def _outputs(inputs: Inputs) -> str:
    return str(inputs.store.path if inputs.store else inputs.results.settings.get("outputs", "outputs"))


def _others(inputs: Inputs) -> Table:
    """The choice under each constraint, side by side."""
    chosen = headline_scores()
    rows = []
    for constraint, meaning in _CONSTRAINTS.items():
        choice = _choice(inputs, constraint)
        cells = [Cell(meaning), Cell("no pipeline with scores in all repeats qualifies"), *(Cell() for _ in chosen)]
        if choice is not None:
            pipeline, test = choice
            means = ((score, (test.get(score.key) or {}).get("mean")) for score in chosen)
            told = (Cell(format_score(score, mean, score.decimals + (score.key == "flip"))) for score, mean in means)
            cells = [Cell(meaning), Cell(pipeline, style="code"), *told]
        rows.append(Row(tuple(cells), style="mine" if constraint == inputs.preserve else ""))
    heads = (Column(score.heading, arrow=score.arrow) for score in chosen)
    return Table("demands", "", (Column("If …", left=True), Column("deploy", left=True), *heads), tuple(rows))


def _choice(inputs: Inputs, constraint: str) -> tuple[str, dict[str, Any]] | None:
    """The pipeline for a constraint, and its test scores."""
    summary = inputs.results.summary
    if inputs.results.selects_by_groups:
        selected = summary["selection"].get(constraint)
        if selected is None:
            return None
        return selected["pipeline"], {key: parts["after"] for key, parts in selected["scores"].items()}
    found = summary["recommendation"].get(constraint)
    return None if found is None else (found["pipeline"], summary["pipelines"][found["pipeline"]]["metrics"])
