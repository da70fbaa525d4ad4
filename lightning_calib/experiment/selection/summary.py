"""What the test cases say about selection by groups as a procedure: each repeat's choice, judged on unseen groups."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from lightning_calib.experiment.advice import GroupAdvice, Preserve
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.selection.folds import MAX_FOLDS
from lightning_calib.experiment.selection.ladder import REFERENCE
from lightning_calib.experiment.selection.records import SelectionRecord
from lightning_calib.experiment.selection.statistics import group_gain
from lightning_calib.experiment.statistics import (
    PAIRED_REPLICATES,
    Floats,
    Interval,
    clustered_bootstrap,
    intervals,
    point_estimate,
)

Judged = list[tuple[int, SelectionRecord]]  # repeats with a selection


def selection_summary(results: Results) -> dict[str, Any] | None:
    """The part of ``summary.json`` on selection by groups, by constraint; None where the run selected otherwise.

    A constraint is None where the selection on all cases failed: nothing can be deployed then.
    """
    if not results.selects_by_groups:
        return None
    found = {preserve: group_advice(results, preserve) for preserve in get_args(Preserve)}
    return {preserve: None if advice is None else asdict(advice) for preserve, advice in found.items()}


def group_advice(results: Results, preserve: Preserve) -> GroupAdvice | None:
    """What to deploy under a constraint, and what the procedure that chose it gains on test cases.

    Args:
        results: of a run that selected by groups.
        preserve: what of the pooled ranking must stay.
    """
    everything = results.selection()
    if everything is None or not everything.ok:
        return None
    found = [(repeat, results.selection(repeat)) for repeat in results.repeats]
    judged = [(repeat, record) for repeat, record in found if record is not None and record.ok]
    choice = everything.choices[preserve]
    own = [record.choices[preserve] for _, record in judged]
    return GroupAdvice(
        preserve=preserve,
        pipeline=choice["pipeline"],
        strength=choice["strength"],
        reason=choice["reason"],
        level=everything.level,
        groups=choice["groups"],
        chosen=[each["pipeline"] for each in own],
        reasons=[each["reason"] for each in own],
        **(_on_test(results, judged, preserve) if judged else {}),
    )


def _on_test(results: Results, judged: Judged, preserve: Preserve) -> dict[str, Any]:
    """Gain over the reference and all scores, on the test cases of the repeats."""
    repeats = [repeat for repeat, _ in judged]
    keys = list(results.selection_scores(repeats[0])[REFERENCE][0].scores)
    before = [_scores(results, repeat, REFERENCE, keys) for repeat in repeats]
    after = [_scores(results, repeat, record.choices[preserve]["pipeline"], keys) for repeat, record in judged]
    clusters = [_clusters(results, repeat, record) for repeat, record in judged]
    nll = keys.index("nll")
    gains = [b[:, [nll]] - a[:, [nll]] for b, a in zip(before, after, strict=True)]
    seed = int(results.settings["seed"])
    draws = clustered_bootstrap(gains, clusters, PAIRED_REPLICATES, seed)
    return {
        "gain": intervals(point_estimate(gains), draws)[0],
        "unseen": all(record.unseen for _, record in judged),
        "by_group": (by_group := _by_group(gains, clusters)),
        **_spread(by_group),
        "scores": _changes(results, before, after, repeats, keys),
    }


def _scores(results: Results, repeat: int, pipeline: str, keys: Sequence[str]) -> Floats:
    """Scores ``(cases, K)`` of what was chosen in a repeat, cases by id."""
    rows = results.selection_scores(repeat)[pipeline]
    return np.array([[row.score(key) for key in keys] for row in rows], dtype=np.float64)


def _clusters(results: Results, repeat: int, record: SelectionRecord) -> list[str]:
    """What test cases are drawn with: the groups that the run keeps whole, or those of the selection, if coarser."""
    kept, own = results.clusters(repeat), [record.test_groups[case] for case in results.test_cases(repeat)]
    return min(own, kept, key=lambda names: len(set(names)))


def _by_group(gains: Sequence[Floats], clusters: Sequence[Sequence[str]]) -> dict[str, float]:
    """Mean gain of each group over its cases in all repeats."""
    names = np.array([name for part in clusters for name in part])
    values = np.concatenate(gains)[:, 0]
    return {str(name): float(np.nanmean(values[names == name])) for name in np.unique(names)}


def _spread(by_group: dict[str, float]) -> dict[str, Any]:
    """How gains differ from group to group; a single group says nothing about another."""
    names, gains = list(by_group), np.array(list(by_group.values()))
    if len(names) < 2:
        return {"share": float(np.mean(gains > 0)), "worst_group": names[0], "worst_gain": float(gains[0])}
    found = group_gain(-gains, names, min(len(names), MAX_FOLDS))
    kept = ("share", "worst_group", "worst_gain", "loss_probability")
    return {key: getattr(found, key) for key in kept}


def _changes(
    results: Results, before: Sequence[Floats], after: Sequence[Floats], repeats: Sequence[int], keys: Sequence[str]
) -> dict[str, dict[str, Interval]]:
    """Each score without calibration, with it, and the difference."""
    tables = [np.concatenate([b, a, a - b], axis=1) for b, a in zip(before, after, strict=True)]
    found, names = results.intervals(tables, repeats), ("before", "after", "change")
    return {key: dict(zip(names, found[n :: len(keys)], strict=True)) for n, key in enumerate(keys)}
