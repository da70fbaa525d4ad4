"""Label-free comparison of new outputs with those that a deployed pipeline was fitted on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
class Table:
    """Statistics of cases as arrays: shares for the stability index, one number a case for the test.

    Attributes:
        shares: quantity to ``(N, K)``.
        scalars: quantity to ``(N,)``.
    """

    shares: dict[str, Floats]
    scalars: dict[str, Floats]

    @classmethod
    def of(cls, cases: Sequence[CaseStatistics], edges: Floats, votes: bool) -> "Table":
        """Table of some cases; ``edges`` are those of the bins of free energy."""
        points = np.array([case.energy for case in cases])
        bins = np.searchsorted(edges, points, side="right")
        energy = (bins[..., None] == np.arange(len(edges) + 1)).mean(axis=1)
        shares = {
            "confidence": np.array([case.confidence for case in cases]),
            "free energy": energy,
            "classes": np.array([case.classes for case in cases]),
        }
        scalars = {
            "confidence": np.array([case.mean_confidence for case in cases]),
            "free energy": points.mean(axis=1),
        }
        if votes:
            shares["disagreement"] = np.array([case.votes for case in cases])
            scalars["disagreement"] = np.array([case.dissent for case in cases])
        return cls(shares, scalars)

    def distances(self, new: "Table") -> Floats:
        """How far ``new`` is from here, one number a check; see :meth:`checks`."""
        indices = [stability_index(v.mean(axis=0), new.shares[k].mean(axis=0)) for k, v in self.shares.items()]
        return np.array([*indices, *(ks_distance(v, new.scalars[k]) for k, v in self.scalars.items())])

    @property
    def checks(self) -> list[tuple[str, str]]:
        """Quantity and kind of each check, in the order of :meth:`distances`."""
        return [(k, "stability index") for k in self.shares] + [(k, "two-sample test") for k in self.scalars]


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
class Verdict:
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
) -> Verdict:
    """Compare new cases with the reference.

    The same numbers of cases are drawn from the reference again and again, as if they were reference and new cases;
    groups are drawn whole. Thresholds are set such that one of all comparisons exceeds its own in a share ``alpha``
    of these draws (the smallest of the p-values is referred to its own distribution: Westfall & Young 1993).

    Args:
        reference: cases that the pipeline was fitted on.
        new: cases to judge.
        alpha: probability of a false alarm.
        resamples: draws from the reference.
        seed: seed of the draws.
    """
    _refuse(reference, new, alpha, resamples)
    edges = np.quantile([case.energy for case in reference], np.arange(1, _ENERGY_BINS) / _ENERGY_BINS)
    votes = all(case.votes is not None for case in (*reference, *new))
    table, others = Table.of(reference, edges, votes), Table.of(new, edges, votes)
    found = table.distances(others)
    null = null_distances(table, [case.group for case in reference], len(new), resamples, seed)
    ranks = 1 + (null >= found).sum(axis=0)  # among the draws, the farthest first
    smallest = np.sort(_ranks(null).min(axis=1))
    allowed = int(np.floor(alpha * (resamples + 1) + 1e-9)) - 1  # draws that may raise a false alarm
    level = int(smallest[allowed]) - 1  # rank up to which no more draws than these have a comparison
    farthest = -np.sort(-null, axis=0)
    thresholds = farthest[level - 1] if level else np.full(len(found), np.inf)
    overall = (1 + (smallest <= ranks.min()).sum()) / (resamples + 1)
    checks = tuple(
        Check(*check, float(value), float(threshold), float(rank / (resamples + 1)), bool(value > threshold))
        for check, value, threshold, rank in zip(table.checks, found, thresholds, ranks, strict=True)
    )
    drift = any(check.drifted for check in checks)
    return Verdict(drift, alpha, float(overall), len(reference), len(new), checks)


def null_distances(table: Table, groups: Sequence[str], size: int, resamples: int, seed: int) -> Floats:
    """Distances ``(resamples, checks)`` between two samples of the reference itself, one of ``size`` cases."""
    rng = np.random.default_rng(seed)
    blocks = [np.flatnonzero(np.array(groups) == group) for group in dict.fromkeys(groups)]
    found = []
    for start in range(0, resamples, _CHUNK):
        number = min(_CHUNK, resamples - start)
        samples = [weights(rng, blocks, rows, len(groups), number) for rows in (len(groups), size)]
        indices = [stability_index(samples[0] @ v, samples[1] @ v) for v in table.shares.values()]
        gaps = [ks_of_weights(v, samples[0] - samples[1]) for v in table.scalars.values()]
        found.append(np.stack([*indices, *gaps], axis=1))
    return np.concatenate(found)


def weights(rng: np.random.Generator, blocks: Sequence[Whole], size: int, rows: int, number: int) -> Floats:
    """Share of each of ``rows`` cases in ``number`` samples of ``size`` cases, ``(number, rows)``."""
    counts = [np.bincount(draw(rng, blocks, size), minlength=rows) for _ in range(number)]
    return np.array(counts) / size


def draw(rng: np.random.Generator, blocks: Sequence[Whole], size: int) -> Whole:
    """``size`` rows in whole blocks, drawn with replacement; the last block is cut."""
    chosen = rng.integers(len(blocks), size=size)
    if len(blocks) == sum(map(len, blocks)):
        return chosen  # every case is its own group
    return np.concatenate([blocks[number] for number in chosen])[:size]


def ks_of_weights(values: Floats, difference: Floats) -> Floats:
    """Kolmogorov-Smirnov distance of two weightings of the same values.

    Args:
        values: ``(N,)``.
        difference: of the weights ``(..., N)``.
    """
    order = np.argsort(values)
    ends = np.append(np.diff(values[order]) > 0, True)  # equal values step together
    return np.asarray(np.abs(difference[..., order].cumsum(axis=-1)[..., ends]).max(axis=-1))


def _ranks(null: Floats) -> Whole:
    """Number of draws that are at least as far, for each draw and check."""
    ordered = np.sort(null, axis=0)
    below = [np.searchsorted(ordered[:, k], null[:, k], side="left") for k in range(null.shape[1])]
    return np.asarray(len(null) - np.stack(below, axis=1))


def _refuse(reference: Sequence[Any], new: Sequence[Any], alpha: float, resamples: int) -> None:
    if len(reference) < LEAST_REFERENCE:
        raise ValueError(f"the reference has {len(reference)} cases; thresholds need at least {LEAST_REFERENCE}")
    if not new:
        raise ValueError("no new cases to compare with the reference")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha}: give a probability between 0 and 1")
    if resamples * alpha < 10:
        raise ValueError(f"resamples = {resamples}: alpha = {alpha} needs at least {int(np.ceil(10 / alpha))}")
