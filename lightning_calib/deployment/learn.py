"""Learn from labelled cases what a deployed folder can promise, and keep it there: what commands and notebooks call."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_calib.decisions.volumes import LEVEL, Scale
from lightning_calib.deployment.decisions import keep_mask, keep_models
from lightning_calib.deployment.labelled import Labelled
from lightning_calib.deployment.learned_masks import Judged, control_masks
from lightning_calib.deployment.learned_structures import (
    JudgedQuality,
    JudgedVolume,
    judge_quality,
    judge_volume,
    observe,
)
from lightning_calib.deployment.learned_thresholds import JudgedThreshold, best_dice, enough_detections, least_cost
from lightning_calib.deployment.structures import find_structure, single_structures


@dataclass(frozen=True)
class JudgedStructures:
    """Intervals of volumes and predicted quality, and how they did on groups that were held out.

    Attributes:
        volumes: of each structure.
        quality: of masks; None where there are too few structures to learn it.
    """

    volumes: tuple[JudgedVolume, ...]
    quality: JudgedQuality | None


def control(
    deployed: str | Path,
    outputs: str | Path,
    structure: str,
    group_level: str | None = None,
    **options: Any,
) -> Judged:
    """Find a mask that holds a risk, from cases that the calibrator was not fitted on, and keep it in the folder.

    Args:
        deployed: folder that was deployed with ``cases="cal_val"``, or from other cases.
        outputs: stored member outputs with labels.
        structure: name of a class or region, or ``foreground`` for all classes but the background.
        group_level: level of the groups that are exchangeable, such as ``patient``, or ``case`` for each case by
            itself; by default the data set's own.
        **options: ``risk``, ``alpha`` and the others of
            :func:`~lightning_calib.deployment.learned_masks.control_masks`.
    """
    region = find_structure(Path(deployed), structure)
    labelled = Labelled(Path(deployed), Path(outputs), group_level)
    found = control_masks(labelled, region, **options)
    keep_mask(labelled.deployed, found.rule)
    return found


def threshold(
    deployed: str | Path,
    outputs: str | Path,
    structure: str,
    cost_fn: float | None = None,
    cost_fp: float | None = None,
    dice: bool = False,
    false_per_case: float | None = None,
    group_level: str | None = None,
    quiet: bool = True,
) -> JudgedThreshold:
    """Choose a threshold on the cases of the fit, judge it on unseen groups, and keep it in the folder.

    Args:
        deployed: folder that was deployed with ``cases="cal_val"``.
        outputs: stored member outputs of the run, with labels.
        structure: name of a class or region, or ``foreground`` for all classes but the background.
        cost_fn: price of a missed voxel, for the threshold of least cost.
        cost_fp: price of a false voxel.
        dice: take the threshold with the best mean Dice.
        false_per_case: take the one that finds most lesions with at most so many false parts a case on average.
        group_level: level of groups that are judged as wholes; by default the data set's own.
        quiet: show no progress.
    """
    prices, wanted = (cost_fn, cost_fp), [cost_fn is not None or cost_fp is not None, dice, false_per_case is not None]
    if sum(wanted) != 1 or (wanted[0] and None in prices):
        raise ValueError("say what is wanted: cost_fn with cost_fp, or dice, or false_per_case, one of them")
    region = find_structure(Path(deployed), structure)
    labelled = Labelled(Path(deployed), Path(outputs), group_level)
    if cost_fn is not None and cost_fp is not None:
        found = least_cost(labelled, region, cost_fn, cost_fp, quiet)
    elif false_per_case is not None:
        found = enough_detections(labelled, region, false_per_case, quiet)
    else:
        found = best_dice(labelled, region, quiet)
    keep_mask(labelled.deployed, found.rule)
    return found


def structures(
    deployed: str | Path,
    outputs: str | Path,
    level: float = LEVEL,
    scale: Scale = "volume",
    group_level: str | None = None,
    quiet: bool = True,
) -> JudgedStructures:
    """Learn intervals of volumes and the quality of masks from unseen cases, and keep both in the folder.

    Args:
        deployed: folder that was deployed with ``cases="cal_val"``, or from other cases.
        outputs: stored member outputs with labels.
        level: probability that the volume of a structure in a case of a new group lies in its interval.
        scale: what intervals are proportional to: ``volume``, ``spread`` or ``constant``.
        group_level: level of the groups that are exchangeable; by default the data set's own.
        quiet: show no progress.
    """
    labelled = Labelled(Path(deployed), Path(outputs), group_level)
    rows = observe(labelled, quiet)
    names = single_structures(labelled.deployed)
    volumes = tuple(judge_volume([row for row in rows if row.structure == name], level, scale) for name in names)
    quality = judge_quality(rows)
    models = {found.structure: found.model for found in volumes}
    keep_models(labelled.deployed, models, None if quality is None else quality.model)
    return JudgedStructures(volumes, quality)
