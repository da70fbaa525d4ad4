"""Thresholds of least cost, best Dice or enough detections: chosen on cases of the fit, judged on unseen ones."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from lightning_calib.decisions.costs import best_threshold, cost_curve, dice_curve
from lightning_calib.decisions.detection import Detections, detections
from lightning_calib.decisions.risks import Counts, Floats, group_means
from lightning_calib.decisions.tables import THRESHOLDS
from lightning_calib.deployment.decisions import MaskRule
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.labelled import Labelled
from lightning_calib.deployment.learned_masks import mean_interval
from lightning_calib.experiment.statistics import Interval, clustered_statistic
from lightning_calib.outputs.regions import Region

DETECTION_THRESHOLDS = THRESHOLDS[1:-1:25].numpy()  # steps of 0.25 in log-odds
_GRID = THRESHOLDS.numpy()


@dataclass(frozen=True)
class JudgedThreshold:
    """A threshold that was chosen, and how it does on unseen groups.

    Attributes:
        rule: what is kept of it.
        figures: by name, means over unseen groups with 95 % intervals.
    """

    rule: MaskRule
    figures: dict[str, Interval]


def least_cost(
    labelled: Labelled, structure: Region, cost_fn: float, cost_fp: float, quiet: bool = True
) -> JudgedThreshold:
    """The threshold of least mean cost, beside the one that calibrated probabilities would need."""
    if not (cost_fn > 0 and cost_fp > 0):
        raise ValueError(f"cost_fn {cost_fn} and cost_fp {cost_fp}: give prices above 0")
    theory = best_threshold(cost_fn, cost_fp)

    def curve(table: Counts) -> Floats:
        return cost_curve(table, cost_fn, cost_fp)

    told = {"rule": "least cost", "cost_fn": cost_fn, "cost_fp": cost_fp, "calibrated": theory}
    return _extreme(labelled, structure, curve, told, {"rule of calibrated probabilities": theory}, quiet)


def best_dice(labelled: Labelled, structure: Region, quiet: bool = True) -> JudgedThreshold:
    """The threshold with the best mean Dice, beside 1/2."""

    def curve(table: Counts) -> Floats:
        return -dice_curve(table)

    return _extreme(labelled, structure, curve, {"rule": "best Dice"}, {"threshold 0.5": 0.5}, quiet)


def _extreme(
    labelled: Labelled,
    structure: Region,
    curve: Callable[[Counts], Floats],
    told: dict[str, object],
    others: dict[str, float],
    quiet: bool,
) -> JudgedThreshold:
    """The threshold with the least mean over groups of a curve, and the same of other thresholds."""
    _, means = _group_curves(labelled, _fitted(labelled), structure, curve, quiet)
    place = int(np.nanargmin(np.nanmean(means, axis=0)))
    names, unseen = _group_curves(labelled, labelled.unseen, structure, curve, quiet)
    found = {"chosen": mean_interval(unseen[:, place], names)}
    for name, threshold in others.items():
        other = int(np.searchsorted(_GRID, threshold - 1e-9))
        found[name] = mean_interval(unseen[:, other], names)
        found[f"chosen minus {name}"] = mean_interval(unseen[:, place] - unseen[:, other], names)
    if told["rule"] == "best Dice":
        found = {name: Interval(-x.mean, -x.high, -x.low) for name, x in found.items()}
    return _judged(labelled, structure, float(_GRID[place]), told, found)


def enough_detections(
    labelled: Labelled, structure: Region, false_per_case: float, quiet: bool = True
) -> JudgedThreshold:
    """The threshold that finds most lesions with at most so many false parts a case."""
    rows = _detected(labelled, _fitted(labelled), structure, quiet)
    false = np.mean([row.false for row in rows], axis=0)
    found = np.sum([row.found for row in rows], axis=0) / max(sum(row.lesions for row in rows), 1)
    allowed = false <= false_per_case
    if not allowed.any():
        raise ValueError(
            f"{false_per_case:g} false parts a case are too few: the least that a threshold has is {false.min():.2f}"
        )
    place = int(np.argmax(np.where(allowed, found, -1.0)))
    unseen = _detected(labelled, labelled.unseen, structure, quiet)
    table = np.array([[row.found[place], row.lesions, row.false[place]] for row in unseen], dtype=np.float64)
    groups = [labelled.groups[case_id] for case_id in labelled.unseen]
    sensitivity, parts = clustered_statistic(_detection_figures, [table], [groups])
    told = {"rule": "most detections", "false_per_case": false_per_case, "froc": froc(unseen)}
    figures = {"share of the lesions that is found": sensitivity, "false parts a case": parts}
    return _judged(labelled, structure, float(DETECTION_THRESHOLDS[place]), told, figures)


def froc(rows: Sequence[Detections]) -> list[dict[str, float]]:
    """The detection curve: at each threshold the share of lesions found, and false parts a case."""
    lesions = max(sum(row.lesions for row in rows), 1)
    return [
        {
            "threshold": float(threshold),
            "found": sum(int(row.found[n]) for row in rows) / lesions,
            "false_per_case": sum(int(row.false[n]) for row in rows) / len(rows),
        }
        for n, threshold in enumerate(DETECTION_THRESHOLDS)
    ]


def _detection_figures(table: Floats) -> Floats:
    found, lesions, false = table.T
    return np.array([found.sum() / lesions.sum() if lesions.sum() else np.nan, false.mean()])


def _fitted(labelled: Labelled) -> tuple[str, ...]:
    if not labelled.fitted:
        raise DeploymentError(
            f"{labelled.outputs} has none of the cases that {labelled.deployed} was fitted on: thresholds are chosen "
            "on those and judged on others; give the store of the run"
        )
    return labelled.fitted


def _group_curves(
    labelled: Labelled,
    case_ids: Sequence[str],
    structure: Region,
    curve: Callable[[Counts], Floats],
    quiet: bool,
) -> tuple[list[str], Floats]:
    """Groups, and the mean of a curve over the cases of each ``(G, K)``.

    Cases without a value at some threshold, since nothing is there, are left out.
    """
    curves = np.stack([curve(table) for table in labelled.tables(case_ids, structure, quiet)])
    held = [not np.isnan(row).any() for row in curves]
    if not any(held):
        raise ValueError(f"no case of {labelled.outputs} has a voxel of {structure.name}: nothing can be chosen")
    return group_means(curves[held], [labelled.groups[c] for c, kept in zip(case_ids, held, strict=True) if kept])


def _detected(labelled: Labelled, case_ids: Sequence[str], structure: Region, quiet: bool) -> list[Detections]:
    found = []
    for case in labelled.each(case_ids, quiet):
        probs, truth = case.maps.probs_of(structure).double(), case.truth(structure) & case.counted
        found.append(
            detections(probs.masked_fill(~case.counted, -1.0).numpy(), truth.numpy(), DETECTION_THRESHOLDS.tolist())
        )
    return found


def _judged(
    labelled: Labelled, structure: Region, threshold: float, told: dict[str, object], figures: dict[str, Interval]
) -> JudgedThreshold:
    facts = {**told, "chosen_on": len(labelled.fitted), "judged_on": len(labelled.unseen)}
    facts["figures"] = {name: asdict(found) for name, found in figures.items()}
    return JudgedThreshold(MaskRule(structure, "chosen", threshold, facts), figures)
