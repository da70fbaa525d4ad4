"""Intervals of volumes and the quality of masks, learned from labelled cases and judged on held-out groups."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_calib.decisions.quality import QualityModel, StructureFacts, true_dice
from lightning_calib.decisions.review import spearman
from lightning_calib.decisions.volumes import Scale, VolumeModel, excess, held_out_intervals
from lightning_calib.deployment.labelled import Labelled, LabelledCase
from lightning_calib.deployment.learned_masks import mean_interval
from lightning_calib.deployment.structures import facts_of, single_structures
from lightning_calib.experiment.statistics import Interval, clustered_statistic
from lightning_calib.outputs.regions import Region


@dataclass(frozen=True)
class Observed:
    """One structure of a labelled case: what is known without labels, and what is true.

    Attributes:
        group: group of the case.
        structure: name.
        facts: label-free.
        volume: true voxels.
        dice: of the mask; NaN where both are empty.
    """

    group: str
    structure: str
    facts: StructureFacts
    volume: int
    dice: float


@dataclass(frozen=True)
class JudgedVolume:
    """Volumes of one structure, in shares of its mean true volume.

    Attributes:
        structure: name.
        model: what is kept.
        volume: mean true voxels.
        mask_bias: mean excess of the mask's volume.
        bias: mean excess of the expected volume.
        width: mean half width of the intervals.
        coverage: share of the cases of held-out groups whose volume lies within.
    """

    structure: str
    model: VolumeModel
    volume: float
    mask_bias: Interval
    bias: Interval
    width: float
    coverage: Interval


@dataclass(frozen=True)
class JudgedQuality:
    """The predicted Dice of structures of groups that were held out.

    Attributes:
        model: what is kept.
        error: mean size of the difference to the true Dice.
        bias: mean difference.
        rank: rank correlation of the predicted and the true Dice.
        rank_expected: that of the expected Dice alone.
    """

    model: QualityModel
    error: float
    bias: float
    rank: float
    rank_expected: float


def observe(labelled: Labelled, quiet: bool = True) -> list[Observed]:
    """All structures of the cases that the calibrator was not fitted on."""
    structures = single_structures(labelled.deployed)
    return [
        each
        for case in labelled.each(labelled.unseen, quiet)
        for each in _observed(case, list(structures.values()), labelled.groups[case.stored.case_id])
    ]


def _observed(case: LabelledCase, structures: Sequence[Region], group: str) -> Iterator[Observed]:
    for region in structures:
        truth, mask = case.truth(region), region.target(case.maps.mask, None).bool()
        facts, volume = facts_of(case.maps, region, case.counted), int((truth & case.counted).sum())
        yield Observed(group, region.name, facts, volume, true_dice(mask, truth, case.counted))


def judge_volume(rows: Sequence[Observed], level: float, scale: Scale) -> JudgedVolume:
    """Fit and judge the intervals of one structure."""
    facts, volumes, groups = [row.facts for row in rows], [float(row.volume) for row in rows], [r.group for r in rows]
    model = VolumeModel.fit(facts, volumes, groups, scale, level)
    true, mean = np.array(volumes), float(np.mean(volumes))
    low, high = held_out_intervals(facts, volumes, groups, scale, level).T
    within = np.where(np.isnan(low), np.nan, (low <= true) & (true <= high))
    sizes = np.array([[fact.mask, fact.expected, volume] for fact, volume in zip(facts, volumes, strict=True)])
    width = float(np.nanmean((high - low) / 2)) / max(mean, 1.0) if not np.isnan(low).all() else float("nan")
    by_mask, expected = clustered_statistic(excess, [sizes], [groups])
    coverage = mean_interval(within, groups)
    return JudgedVolume(rows[0].structure, model, mean, by_mask, expected, width, coverage)


def judge_quality(rows: Sequence[Observed]) -> JudgedQuality | None:
    """Fit and judge the predicted Dice; None where there are too few structures."""
    groups = np.array([row.group for row in rows])
    predicted = np.full(len(rows), np.nan)
    try:
        model = QualityModel.fit([row.facts for row in rows], [row.dice for row in rows])
        for group in np.unique(groups):
            rest = [row for row, own in zip(rows, groups == group, strict=True) if not own]
            left_out = QualityModel.fit([row.facts for row in rest], [row.dice for row in rest])
            own = np.flatnonzero(groups == group).tolist()
            predicted[own] = left_out.predict([rows[n].facts for n in own])
    except ValueError:
        return None
    true, expected = np.array([row.dice for row in rows]), np.array([row.facts.expected_dice for row in rows])
    held = ~np.isnan(true) & ~np.isnan(predicted)
    difference = (predicted - true)[held]
    ranks = (spearman(score[held], true[held]) for score in (predicted, expected))
    return JudgedQuality(model, float(np.abs(difference).mean()), float(difference.mean()), *ranks)
