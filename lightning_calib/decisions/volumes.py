"""Volumes of structures from calibrated probabilities, with prediction intervals that hold for new groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lightning_calib.decisions.control import TooFewGroupsError
from lightning_calib.decisions.quality import StructureFacts

Floats = NDArray[np.float64]
Scale = Literal["spread", "volume", "constant"]

LEVEL = 0.9


def scale_of(facts: StructureFacts, scale: Scale) -> float:
    r"""What a residual of the volume is divided by, in voxels; at least one voxel.

    ``spread`` is :math:`\sqrt{1 + \sum_v p_v (1 - p_v)}`, the standard deviation if voxels were independent;
    ``volume`` is :math:`1 + \sum_v p_v`; ``constant`` is 1.

    Example:
        >>> facts = StructureFacts(mask=10, hits=8.0, expected=9.0, variance=3.0)
        >>> [scale_of(facts, scale) for scale in ("spread", "volume", "constant")]
        [2.0, 10.0, 1.0]
    """
    return {"spread": sqrt(1 + facts.variance), "volume": 1 + facts.expected, "constant": 1.0}[scale]


def least_groups(level: float) -> int:
    """Groups that an interval needs: fewer cannot promise the level.

    Example:
        >>> least_groups(0.9), least_groups(0.95), least_groups(0.8)
        (9, 19, 4)
    """
    if not 0 < level < 1:
        raise ValueError(f"level {level}: give a share between 0 and 1, such as {LEVEL}")
    return ceil(level / (1 - level) - 1e-9)


def conformal_quantile(scores: Sequence[float], groups: Sequence[str], level: float = LEVEL) -> float:
    r"""The score that one of a new group does not exceed with a probability of at least ``level``.

    .. math::
        \hat q = \min \Bigl\{ q : \sum_{g=1}^{G} \frac{1}{(G + 1)\, n_g}
        \sum_{i=1}^{n_g} 1\{s_{gi} \le q\} \ge \text{level} \Bigr\}

    with ``G`` groups of ``n_g`` scores ``s``. It holds where groups are exchangeable, whatever binds the cases within
    one (hierarchical conformal prediction, Lee, Barber & Willett 2023). With one case a group it is split conformal
    prediction.

    Args:
        scores: nonconformity scores.
        groups: group of each.
        level: the probability.

    Raises:
        TooFewGroupsError: where even the largest score cannot promise it.

    Example:
        >>> conformal_quantile([3.0, 1.0, 2.0, 4.0], ["a", "b", "c", "d"], 0.6)
        3.0
    """
    names, place, count = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    if len(names) < least_groups(level):
        raise TooFewGroupsError(
            f"an interval of {level:.0%} needs {least_groups(level)} groups of labelled cases, there are {len(names)}: "
            "take more groups or a lower level"
        )
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum((1 / ((len(names) + 1) * count[place]))[order])
    return float(values[order][np.searchsorted(reached, level - 1e-12)])


@dataclass(frozen=True)
class VolumeModel:
    r"""Prediction intervals for the volume of one structure.

    .. math:: \sum_v p_v \pm \hat q \, s, \qquad s \text{ of the case}

    Attributes:
        quantile: conformal quantile of the residuals' sizes, in units of the scale.
        scale: what residuals are divided by.
        level: probability that the volume of a case of a new group lies within.
        groups: groups that it rests on.
    """

    quantile: float
    scale: Scale
    level: float
    groups: int

    @classmethod
    def fit(
        cls,
        facts: Sequence[StructureFacts],
        volumes: Sequence[float],
        groups: Sequence[str],
        scale: Scale = "spread",
        level: float = LEVEL,
    ) -> "VolumeModel":
        """Fit it to the true volumes of one structure, in voxels; cases of one group count as one together.

        Args:
            facts: of each case.
            volumes: true volumes.
            groups: group of each case.
            scale: what residuals are divided by.
            level: the probability.
        """
        pairs = zip(facts, volumes, strict=True)
        scores = [abs(volume - fact.expected) / scale_of(fact, scale) for fact, volume in pairs]
        return cls(conformal_quantile(scores, groups, level), scale, level, len(set(groups)))

    def interval(self, facts: StructureFacts, voxels: float = float("inf")) -> tuple[float, float]:
        """Bounds in voxels, cut to what is possible.

        Args:
            facts: of the case.
            voxels: voxels of the case that count.
        """
        half = self.quantile * scale_of(facts, self.scale)
        return max(facts.expected - half, 0.0), min(facts.expected + half, voxels)


def held_out_intervals(
    facts: Sequence[StructureFacts],
    volumes: Sequence[float],
    groups: Sequence[str],
    scale: Scale = "spread",
    level: float = LEVEL,
) -> Floats:
    """Intervals ``(n, 2)`` of each case, fitted without its group; NaN where the other groups are too few.

    Args:
        facts: of each case.
        volumes: true volumes in voxels.
        groups: group of each case.
        scale: what residuals are divided by.
        level: the probability.
    """
    found = np.full((len(facts), 2), np.nan)
    for group in sorted(set(groups)):
        others = [n for n, name in enumerate(groups) if name != group]
        if len({groups[n] for n in others}) < least_groups(level):
            continue
        known = ([facts[n] for n in others], [volumes[n] for n in others], [groups[n] for n in others])
        model = VolumeModel.fit(*known, scale=scale, level=level)
        for n in (n for n, name in enumerate(groups) if name == group):
            found[n] = model.interval(facts[n])
    return found


def excess(table: Floats) -> Floats:
    """Relative excess of the first columns ``(n, K)`` over the last one; NaN where that is empty.

    Example:
        >>> excess(np.array([[8.0, 10.0], [4.0, 5.0]])).round(3).tolist()
        [-0.2]
    """
    sums = table.sum(axis=0)
    found: Floats = sums[:-1] / sums[-1] - 1 if sums[-1] > 0 else np.full(len(sums) - 1, np.nan)
    return found


def voxel_volume(geometry: object) -> tuple[float, str]:
    """Volume of a voxel and its unit: ml where a spacing in mm is known, else 1 voxel.

    Args:
        geometry: facts on a case of a store.

    Example:
        >>> voxel_volume({"spacing": [2.0, 1.0, 0.5]}), voxel_volume(None)
        ((0.001, 'ml'), (1.0, 'voxels'))
    """
    spacing = geometry.get("spacing") if isinstance(geometry, dict) else None
    return (float(np.prod(spacing)) / 1000, "ml") if spacing and len(spacing) == 3 else (1.0, "voxels")
