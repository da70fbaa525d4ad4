"""Label-free comparison of new outputs with those that a deployed pipeline was fitted on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_calib.deployment.statistics import CaseStatistics

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

ALPHA = 0.01
RESAMPLES = 1999
LEAST_REFERENCE = 5
_ENERGY_BINS = 10
_CHUNK = 256  # resamples at a time
_FLOOR = 1e-4  # least share in a stability index, by custom: an empty bin must not make it infinite


def stability_index(reference: Floats, new: Floats) -> Floats:
    r"""Population stability index of shares over the last axis.

    .. math:: \sum_k (q_k - p_k) \log \frac{q_k}{p_k}

    Args:
        reference: ``p (..., K)``.
        new: ``q (..., K)``; both are raised to 1e-4 where they are smaller.

    Example:
        >>> float(stability_index(np.array([0.5, 0.5]), np.array([0.5, 0.5])))
        0.0
    """
    p, q = np.maximum(reference, _FLOOR), np.maximum(new, _FLOOR)
    return np.asarray(((q - p) * np.log(q / p)).sum(axis=-1))


def ks_distance(first: Floats, second: Floats) -> float:
    """Kolmogorov-Smirnov distance: the largest gap between two empirical distribution functions.

    Example:
        >>> ks_distance(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
        1.0
    """
    places = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(sample), places, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        quantity: what is compared.
        kind: ``stability index`` over voxels, or ``two-sample test`` by case.
        value: the distance found.
        threshold: distance beyond which drift is reported.
        p_value: share of resamples of the reference that are as far from it.
        drifted: whether the value is beyond the threshold.
    """

    quantity: str
    kind: str
    value: float
    threshold: float
    p_value: float
    drifted: bool


@dataclass(frozen=True)
class DriftReport:
    """The outcome of all comparisons.

    Attributes:
        drift: whether one of them is beyond its threshold.
        alpha: probability of a false alarm over all comparisons together.
        p_value: probability of such an outcome, or one as extreme, without drift.
        reference_cases: cases of the reference.
        new_cases: cases that were compared with it.
        checks: the comparisons.
    """

    drift: bool
    alpha: float
    p_value: float
    reference_cases: int
    new_cases: int
    checks: tuple[Check, ...]


def monitor(
    reference: Sequence[CaseStatistics],
    new: Sequence[CaseStatistics],
    alpha: float = ALPHA,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> DriftReport:
    """Compare new cases with the reference.

    The same numbers of cases are drawn from the reference again and again, as if they were reference and new cases;
    groups are drawn whole. Thresholds are set such that one of all comparisons exceeds its own in a share ``alpha``
    of these draws.

    Args:
        reference: cases that the pipeline was fitted on.
        new: cases to judge.
        alpha: probability of a false alarm.
        resamples: draws from the reference.
        seed: seed of the draws.
    """
    refuse_settings(reference, alpha, resamples)
    if not new:
        raise ValueError("no new cases to compare with the reference")
    edges = energy_edges(reference)
    votes = all(case.votes is not None for case in (*reference, *new))
    there, here = quantities(reference, edges, votes), quantities(new, edges, votes)
    found = np.array([quantity.distance(other) for quantity, other in zip(there, here, strict=True)])
    null = NullDraws(null_distances(there, [case.group for case in reference], len(new), resamples, seed))
    thresholds, p_values = null.thresholds(alpha), null.ranks_of(found) / (resamples + 1)
    checks = tuple(
        Check(quantity.name, quantity.kind, float(value), float(threshold), float(p), bool(value > threshold))
        for quantity, value, threshold, p in zip(there, found, thresholds, p_values, strict=True)
    )
    drift = any(check.drifted for check in checks)
    return DriftReport(drift, alpha, null.p_value(found), len(reference), len(new), checks)


class Quantity(ABC):
    """One thing that is compared, with its values ``(N, ...)`` for N cases."""

    kind: ClassVar[str]

    def __init__(self, name: str, values: Sequence[Any] | Floats) -> None:
        self.name, self.values = name, np.asarray(values, dtype=np.float64)

    @abstractmethod
    def distance(self, new: "Quantity") -> float:
        """How far new cases are from these."""

    @abstractmethod
    def resampled(self, first: Floats, second: Floats) -> Floats:
        """How far two weightings ``(R, N)`` of these cases are from each other, ``(R,)``."""


class VoxelShares(Quantity):
    """Shares ``(N, K)`` of each case's voxels, compared as means over cases."""

    kind = "stability index"

    def distance(self, new: Quantity) -> float:
        """Stability index of the mean shares."""
        return float(stability_index(self.values.mean(axis=0), new.values.mean(axis=0)))

    def resampled(self, first: Floats, second: Floats) -> Floats:
        """The same of weighted means."""
        return stability_index(first @ self.values, second @ self.values)


class CaseValues(Quantity):
    """One number a case ``(N,)``, compared as a distribution over cases."""

    kind = "two-sample test"

    def distance(self, new: Quantity) -> float:
        """Kolmogorov-Smirnov distance."""
        return ks_distance(self.values, new.values)

    def resampled(self, first: Floats, second: Floats) -> Floats:
        """The same of two weightings."""
        order = np.argsort(self.values)
        ends = np.append(np.diff(self.values[order]) > 0, True)  # equal values step together
        return np.asarray(np.abs((first - second)[..., order].cumsum(axis=-1)[..., ends]).max(axis=-1))


def energy_edges(reference: Sequence[CaseStatistics]) -> Floats:
    """Deciles of the reference's free energy."""
    return np.quantile([case.energy for case in reference], np.arange(1, _ENERGY_BINS) / _ENERGY_BINS)


def quantities(cases: Sequence[CaseStatistics], edges: Floats, votes: bool) -> list[Quantity]:
    """What is compared of some cases; ``edges`` are those of the bins of free energy."""
    points = np.array([case.energy for case in cases])
    bins = np.searchsorted(edges, points, side="right")
    shares: list[Quantity] = [
        VoxelShares("confidence", [case.confidence for case in cases]),
        VoxelShares("free energy", (bins[..., None] == np.arange(len(edges) + 1)).mean(axis=1)),
        VoxelShares("classes", [case.classes for case in cases]),
    ]
    values: list[Quantity] = [
        CaseValues("confidence", [case.mean_confidence for case in cases]),
        CaseValues("free energy", points.mean(axis=1)),
    ]
    if votes:
        shares.append(VoxelShares("disagreement", [case.votes for case in cases]))
        values.append(CaseValues("disagreement", [case.dissent for case in cases]))
    return [*shares, *values]


class NullDraws:
    """Distances ``(draws, checks)`` without drift, and what they say about distances that were found.

    A draw's rank in a check is the number of draws that are at least as far. All checks together are judged by the
    smallest of a draw's ranks, which is referred to its own distribution (Westfall & Young 1993).
    """

    def __init__(self, distances: Floats) -> None:
        self.ordered = np.sort(distances, axis=0)  # the nearest first
        below = [np.searchsorted(self.ordered[:, k], column) for k, column in enumerate(distances.T)]
        self.smallest = np.sort((len(distances) - np.stack(below, axis=1)).min(axis=1))

    def ranks_of(self, found: Floats) -> Whole:
        """Rank of found distances among the draws, themselves counted."""
        return np.asarray(1 + (self.ordered >= found).sum(axis=0))

    def p_value(self, found: Floats) -> float:
        """Share of draws with a check as extreme as the most extreme one found."""
        return float((1 + (self.smallest <= self.ranks_of(found).min()).sum()) / (len(self.ordered) + 1))

    def thresholds(self, alpha: float) -> Floats:
        """Distance of each check such that a share ``alpha`` of the draws exceeds one of them."""
        alarms = int(np.floor(alpha * (len(self.ordered) + 1) + 1e-9)) - 1  # draws that may raise a false one
        rank = int(self.smallest[alarms]) - 1  # no more draws than these have a check of this rank or below
        return self.ordered[-rank] if rank else np.full(self.ordered.shape[1], np.inf)


def null_distances(there: Sequence[Quantity], groups: Sequence[str], size: int, resamples: int, seed: int) -> Floats:
    """Distances ``(resamples, checks)`` between two samples of the reference itself, one of ``size`` cases."""
    rng = np.random.default_rng(seed)
    blocks = [np.flatnonzero(np.array(groups) == group) for group in dict.fromkeys(groups)]
    found = []
    for start in range(0, resamples, _CHUNK):
        number = min(_CHUNK, resamples - start)
        samples = [[draw(rng, blocks, rows) for _ in range(number)] for rows in (len(groups), size)]
        first, second = (np.array([np.bincount(s, minlength=len(groups)) / len(s) for s in each]) for each in samples)
        found.append(np.stack([quantity.resampled(first, second) for quantity in there], axis=1))
    return np.concatenate(found)


def draw(rng: np.random.Generator, blocks: Sequence[Whole], size: int) -> Whole:
    """``size`` rows in whole blocks, drawn with replacement; the last block is cut."""
    chosen = rng.integers(len(blocks), size=size)
    if len(blocks) == sum(map(len, blocks)):
        return chosen  # every case is its own group
    return np.concatenate([blocks[number] for number in chosen])[:size]


def refuse_settings(reference: Sequence[Any], alpha: float, resamples: int) -> None:
    """Stop where no thresholds could be drawn, before networks are run for nothing."""
    if len(reference) < LEAST_REFERENCE:
        raise ValueError(
            f"the pipeline was deployed on {len(reference)} cases, thresholds need at least {LEAST_REFERENCE}: deploy "
            "it again on more"
        )
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha}: give a probability between 0 and 1")
    if resamples * alpha < 10:
        raise ValueError(f"resamples = {resamples}: alpha = {alpha} needs at least {int(np.ceil(10 / alpha))}")
