"""Thresholds of masks, learned from labelled cases and judged on groups that had no part in the choice."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from lightning_calib.decisions.control import Control, Method
from lightning_calib.decisions.risks import RISKS, Counts, Floats, case_losses, group_means
from lightning_calib.decisions.tables import THRESHOLDS
from lightning_calib.deployment.decisions import MaskRule
from lightning_calib.deployment.labelled import Labelled
from lightning_calib.experiment.statistics import Interval, clustered_bootstrap, intervals
from lightning_calib.outputs.regions import Region


@dataclass(frozen=True)
class Judged:
    """A controlled mask, and how it did on groups that were held out.

    Attributes:
        rule: what is kept of it.
        mean: mean loss of the held-out groups with its 95 % interval.
        by_unit: mean loss of each unit that was held out as a whole; NaN where the others were too few.
    """

    rule: MaskRule
    mean: Interval
    by_unit: dict[str, float]


def control_masks(
    labelled: Labelled,
    structure: Region,
    risk: str = "missed",
    alpha: float = 0.1,
    method: Method = "crc",
    delta: float = 0.1,
    judge_by: str | None = None,
    quiet: bool = True,
) -> Judged:
    """Find the threshold that holds a risk, from cases that the calibrator was not fitted on.

    Args:
        labelled: the cases.
        structure: what the mask is of.
        risk: ``missed``, ``false``, or the dotted path of a :class:`~lightning_calib.decisions.risks.Risk`.
        alpha: bound of the risk.
        method: ``crc``, ``hb`` or ``wsr``, see :class:`~lightning_calib.decisions.control.Control`.
        delta: of ``hb`` and ``wsr``.
        judge_by: level of groups that are held out together; by default that of the exchangeable groups.
        quiet: show no progress.
    """
    kind = RISKS[risk]
    how, cases = Control(kind.side, alpha, method, delta), labelled.unseen
    groups = [labelled.groups[case_id] for case_id in cases]
    how.refuse_few(len(set(groups)))
    tables = labelled.tables(cases, structure, quiet)
    names, losses = group_means(np.stack([case_losses(kind, table) for table in tables]), groups)
    place = how.choose(losses)
    larger = labelled.groups_at(judge_by or labelled.level)
    unit_of = {group: larger[case_id] for group, case_id in zip(groups, cases, strict=True)}
    units = [unit_of[name] for name in names]
    held_out = how.held_out(losses, units)
    mean = mean_interval(held_out, units)
    facts = {"risk": risk, "told": kind.told, **asdict(how), "group_level": labelled.level, "groups": len(names)}
    facts |= {"cases": len(cases), "mean_loss": float(losses[:, place].mean()), "held_out": asdict(mean)}
    facts |= {"voxels_to_true": voxels_to_true(tables, place)}
    rule = MaskRule(structure, kind.side, float(THRESHOLDS[place]), facts)
    by_unit, means = group_means(held_out[:, None], units)
    return Judged(rule, mean, dict(zip(by_unit, means[:, 0].tolist(), strict=True)))


def mean_interval(values: Floats, units: Sequence[str]) -> Interval:
    """Mean of groups' values ``(G,)`` with a 95 % interval; groups of a unit are drawn together."""
    return intervals(np.nanmean(values, keepdims=True), clustered_bootstrap([values[:, None]], [list(units)]))[0]


def voxels_to_true(tables: Counts, place: int) -> float | None:
    """Voxels of all masks at a threshold over all true ones; None where there are no true voxels."""
    true = int(tables[:, 1, 0].sum())
    return float(tables[:, :, place].sum() / true) if true else None
