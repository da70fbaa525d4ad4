"""What calibrated probabilities say about the mask of a structure, without its labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan, log, nan

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from lightning_calib.functional.boundary import boundary

Floats = NDArray[np.float64]

FEATURES = ("expected_dice", "certainty", "agreement")
LEAST_CASES = 10  # structures of cases that a quality model is fitted on: it has up to four numbers
_LEFT_OUT = -1


@dataclass(frozen=True)
class StructureFacts:
    r"""Label-free facts on one structure of a case, over the voxels that count.

    Attributes:
        mask: voxels of its mask ``A``.
        hits: expected voxels of the mask that are right, :math:`\sum_{v \in A} p_v`.
        expected: expected volume in voxels, :math:`\sum_v p_v`.
        variance: of the volume if voxels were independent, :math:`\sum_v p_v (1 - p_v)`.
        certainty: 1 minus the mean entropy, in bits, of being in the structure or not, over the voxels on both sides
            of the mask's border; of all its voxels where it has no border; NaN where the mask is empty.
        agreement: Dice of the members' own masks, mean over pairs of members; 0 where none finds what the mask has;
            NaN where there are no pairs, or neither mask nor members find anything.
    """

    mask: int
    hits: float
    expected: float
    variance: float
    certainty: float = nan
    agreement: float = nan

    @property
    def expected_dice(self) -> float:
        r"""Expected Dice of the mask by the ratio of expectations; NaN where the mask is empty.

        .. math:: \frac{2 \sum_{v \in A} p_v}{|A| + \sum_v p_v}

        Where voxels are many this is the mean of the Dice over labels that are drawn voxel by voxel:
        ``benchmarks/expected_dice.py`` compares the two.

        Example:
            >>> StructureFacts(mask=10, hits=8.0, expected=10.0, variance=3.0).expected_dice
            0.8
        """
        return 2 * self.hits / (self.mask + self.expected) if self.mask else nan


def structure_facts(
    probs: Tensor, mask: Tensor, counted: Tensor | None = None, members: Tensor | None = None
) -> StructureFacts:
    """Facts on one structure of a case.

    Args:
        probs: calibrated probability of the structure ``(*S)``.
        mask: its mask, bool ``(*S)``.
        counted: which voxels count, bool ``(*S)``; all by default.
        members: masks of the members, bool ``(M, *S)``, where they are known.

    Example:
        >>> fact = structure_facts(torch.tensor([0.1, 0.4, 0.8]), torch.tensor([False, False, True]))
        >>> fact.mask, round(fact.expected, 3), round(fact.expected_dice, 3)
        (1, 1.3, 0.696)
    """
    inside = torch.ones_like(mask) if counted is None else counted
    values, own = probs[inside], mask[inside]  # (n,)
    agreement = nan if members is None else pairwise_dice(members[:, inside])
    if members is not None and len(members) > 1 and own.any() and isnan(agreement):
        agreement = 0.0
    return StructureFacts(
        mask=int(own.sum()),
        hits=float(values[own].sum(dtype=torch.float64)),
        expected=float(values.sum(dtype=torch.float64)),
        variance=float((values * (1 - values)).sum(dtype=torch.float64)),
        certainty=_certainty(probs, mask, inside),
        agreement=agreement,
    )


def _certainty(probs: Tensor, mask: Tensor, counted: Tensor) -> float:
    place = boundary(mask.long().masked_fill(~counted, _LEFT_OUT), _LEFT_OUT) & counted
    place = place if place.any() else mask & counted
    found = probs[place].double()
    return 1 - float((torch.special.entr(found) + torch.special.entr(1 - found)).mean()) / log(2) if len(found) else nan


def pairwise_dice(members: Tensor) -> float:
    """Dice of masks ``(M, n)``, mean over the pairs of members that find anything; NaN where none does.

    Example:
        >>> pairwise_dice(torch.tensor([[False, False, True, True], [False, True, True, True]]))
        0.8
    """
    sizes = members.sum(dim=1).tolist()
    scores = [
        2 * int((members[a] & members[b]).sum()) / (sizes[a] + sizes[b])
        for a, b in combinations(range(len(members)), 2)
        if sizes[a] + sizes[b]
    ]
    return sum(scores) / len(scores) if scores else nan


def true_dice(mask: Tensor, truth: Tensor, counted: Tensor) -> float:
    """Dice of a mask and the truth, bool ``(*S)``; NaN where both are empty.

    Example:
        >>> every = torch.tensor([True, True, True])
        >>> true_dice(torch.tensor([True, True, False]), torch.tensor([True, False, False]), every)
        0.6666666666666666
    """
    return pairwise_dice(torch.stack([mask[counted], truth[counted]]))


@dataclass(frozen=True)
class QualityModel:
    r"""Predicted Dice: a monotone function of label-free facts.

    .. math:: \hat d = \min(1, \max(0, b + \sum_j w_j x_j)), \qquad w_j \ge 0

    More expected overlap, certainty or agreement never lowers it. Least squares with weights of at least 0 has a few
    numbers only, so that a few cases are enough, and it goes on beyond the cases that it was fitted on.

    Attributes:
        features: names of the facts ``x``.
        weights: ``w``, one a fact.
        intercept: ``b``.
    """

    features: tuple[str, ...]
    weights: tuple[float, ...]
    intercept: float

    @classmethod
    def fit(cls, facts: Sequence[StructureFacts], dice: Sequence[float]) -> "QualityModel":
        """Fit it to the Dice of some structures; those without a mask or a Dice are left out.

        Args:
            facts: of each structure.
            dice: its Dice; NaN where there is none.
        """
        values, truth = _table(facts), np.asarray(dice, dtype=np.float64)
        known = [bool(column.any()) for column in ~np.isnan(values[~np.isnan(truth)]).T]
        values, features = values[:, known], tuple(f for f, kept in zip(FEATURES, known, strict=True) if kept)
        held = ~np.isnan(values).any(axis=1) & ~np.isnan(truth)
        if held.sum() < LEAST_CASES:
            raise ValueError(
                f"a model of the Dice needs {LEAST_CASES} structures with a mask and a known Dice; there are "
                f"{held.sum()}: give it more labelled cases"
            )
        x, y = values[held], truth[held]
        weights, _ = nnls(x - x.mean(axis=0), y - y.mean())
        return cls(features, tuple(map(float, weights)), float(y.mean() - x.mean(axis=0) @ weights))

    def predict(self, facts: Sequence[StructureFacts]) -> Floats:
        """Predicted Dice of structures ``(n,)``; NaN where a fact is missing."""
        values = _table(facts, self.features)
        predicted: Floats = np.clip(self.intercept + values @ np.asarray(self.weights), 0, 1)
        return predicted


def _table(facts: Sequence[StructureFacts], features: Sequence[str] = FEATURES) -> Floats:
    """Facts as numbers ``(n, F)``."""
    rows = [[getattr(fact, name) for name in features] for fact in facts]
    return np.asarray(rows, dtype=np.float64).reshape(len(facts), len(features))
