r"""Intervals for means over cases and repeats, by resampling.

A score is a table with one column of case values a repeat. Its estimate is the mean over repeats of the mean
over cases,

.. math:: \hat\theta = \frac{1}{R} \sum_{r=1}^{R} \frac{1}{n_r} \sum_{i=1}^{n_r} x_{ri},

with ``R`` repeats, ``n_r`` test cases in repeat ``r`` and the score ``x_ri`` of case ``i``. NaN values (a case
without any class to score) are left out of the means.

All columns of a table are resampled together: the same draws serve every pipeline and metric, so that
differences of columns are paired, and the whole table costs a few matrix products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
IntervalKind = Literal["clustered", "two_level"]

REPLICATES = 2000
PAIRED_REPLICATES = 10_000
LEVEL = 0.95
_DRAWS = 4_000_000  # drawn case numbers held at once


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile interval."""

    mean: float
    low: float
    high: float


def point_estimate(tables: Sequence[Floats]) -> Floats:
    """Mean over repeats of the mean over cases.

    Args:
        tables: one array ``(n_r, K)`` a repeat, with ``K`` scores a case; NaN where a case has no score.

    Returns:
        ``(K,)``; NaN where a score has no value at all.

    Example:
        >>> point_estimate([np.array([[1.0], [3.0]]), np.array([[5.0]])])
        array([3.5])
    """
    ones = [np.ones((1, len(table))) for table in tables]
    means = mean_over(np.stack([_weighted(w, table) for w, table in zip(ones, tables, strict=True)]))
    return np.asarray(means[0])


def two_level_bootstrap(
    tables: Sequence[Floats],
    replicates: int = REPLICATES,
    seed: int = 0,
    clusters: Sequence[Sequence[str]] | None = None,
) -> Floats:
    """Bootstrap distribution of the estimate: repeats are drawn first, then cases within each drawn repeat.

    A repeat that is drawn twice gets two independent draws of its cases (Efron & Tibshirani 1994). Cases of one group
    are drawn together: they are alike, and a group counts as one observation.

    Args:
        tables: one array ``(n_r, K)`` a repeat, with ``K`` scores a case; NaN where a case has no score.
        replicates: number ``B`` of replicates.
        seed: seed of the draws; the same seed gives the same draws whatever ``K``.
        clusters: for each repeat the names of its ``n_r`` rows, equal names are drawn together; None draws each case
            by itself.

    Returns:
        ``(B, K)``.

    Example:
        >>> tables = [np.arange(8.0)[:, None], np.arange(1.0, 9.0)[:, None]]
        >>> replicates = two_level_bootstrap(tables, replicates=500, seed=0)
        >>> replicates.shape, bool(abs(replicates.mean() - 4.0) < 0.1)
        ((500, 1), True)
        >>> grouped = two_level_bootstrap(tables, replicates=500, seed=0, clusters=[list("aaaabbbb")] * 2)
        >>> bool(grouped.std() > 1.5 * replicates.std())
        True
    """
    _check(tables, clusters)
    names = [range(len(table)) for table in tables] if clusters is None else clusters
    numbers = [_numbered(own) for own in names]
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(tables), size=(replicates, len(tables)))
    means = np.empty((len(tables), replicates, tables[0].shape[1]))
    for slot in range(len(tables)):
        for repeat, table in enumerate(tables):
            chosen = np.flatnonzero(drawn[:, slot] == repeat)
            means[slot, chosen] = _case_means(rng, table, numbers[repeat], len(chosen))
    return mean_over(means)


def clustered_bootstrap(
    tables: Sequence[Floats],
    clusters: Sequence[Sequence[str]],
    replicates: int = REPLICATES,
    seed: int = 0,
    draw_repeats: bool = True,
) -> Floats:
    """Bootstrap distribution of the estimate when cases are drawn as wholes, with their scores in all repeats.

    One case is a test case in several repeats, and its scores there are not independent. Here cases are drawn
    from the union of all test sets; a drawn case brings its scores of every repeat along. Repeats are drawn
    too, independently of the cases (the pigeonhole bootstrap of Owen 2007).

    Args:
        tables: one array ``(n_r, K)`` a repeat.
        clusters: for each repeat the names of its ``n_r`` rows; equal names are drawn together.
        replicates: number ``B`` of replicates.
        seed: seed of the draws.
        draw_repeats: False keeps the repeats as they are: the interval then says nothing about other fits.

    Returns:
        ``(B, K)``.

    Example:
        >>> tables = [np.array([[1.0], [2.0]]), np.array([[2.0], [4.0]])]
        >>> clustered_bootstrap(tables, [["a", "b"], ["a", "c"]], replicates=100).shape
        (100, 1)
    """
    return mean_over(clustered_means(tables, clusters, replicates, seed, draw_repeats))


def clustered_means(
    tables: Sequence[Floats],
    clusters: Sequence[Sequence[str]],
    replicates: int = REPLICATES,
    seed: int = 0,
    draw_repeats: bool = True,
) -> Floats:
    """The means over cases that :func:`clustered_bootstrap` averages, one a drawn repeat.

    For scores that are functions of such means, as those of all voxels together are of sums.

    Returns:
        ``(R, B, K)``.
    """
    _check(tables, clusters)
    names = sorted({name for rows in clusters for name in rows})
    number = {name: n for n, name in enumerate(names)}
    rows = [np.array([number[name] for name in part]) for part in clusters]
    rng = np.random.default_rng(seed)
    parts = []
    for size in _pieces(replicates, len(names)):
        weights = _multiplicities(rng, size, len(names))
        parts.append(np.stack([_weighted(weights[:, at], t) for at, t in zip(rows, tables, strict=True)]))
    means = np.concatenate(parts, axis=1)  # (R, B, K)
    if draw_repeats:
        drawn = rng.integers(len(tables), size=(len(tables), replicates))
        means = np.take_along_axis(means, drawn[:, :, None], axis=0)
    return means


def clustered_statistic(
    statistic: Callable[[Floats], Floats],
    tables: Sequence[Floats],
    clusters: Sequence[Sequence[str]],
    replicates: int = REPLICATES,
    seed: int = 0,
) -> list[Interval]:
    """Mean over repeats of figures that are no means over cases, such as rank correlations, with intervals.

    Groups and repeats are drawn as by :func:`clustered_bootstrap`.

    Args:
        statistic: from some cases ``(m, K)`` to figures ``(J,)``.
        tables: one array ``(n_r, K)`` a repeat.
        clusters: for each repeat the names of its ``n_r`` rows; equal names are drawn together.
        replicates: number of replicates.
        seed: seed of the draws.

    Example:
        >>> tables = [np.array([[1.0], [2.0], [6.0]])]
        >>> (found,) = clustered_statistic(lambda table: np.median(table, axis=0), tables, [["a", "b", "c"]], 200)
        >>> found.mean, found.low, found.high
        (2.0, 1.0, 6.0)
    """
    _check(tables, clusters)
    names = sorted({name for rows in clusters for name in rows})
    number = {name: n for n, name in enumerate(names)}
    rows = [np.array([number[name] for name in part]) for part in clusters]
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(replicates):
        times = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names))
        chosen = rng.integers(len(tables), size=len(tables))
        parts = [np.repeat(tables[r], times[rows[r]], axis=0) for r in chosen]
        found = [statistic(part) for part in parts if len(part)]
        if found:  # few groups may leave no case of the drawn repeats
            drawn.append(mean_over(np.stack(found)))
    return intervals(mean_over(np.stack([statistic(table) for table in tables])), np.stack(drawn))


def percentile_interval(replicates: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Percentile interval of each column of a bootstrap distribution ``(B, K)``: two arrays ``(K,)``.

    Replicates without a value (all of a score's cases NaN) are left out.

    Example:
        >>> low, high = percentile_interval(np.arange(101.0)[:, None], level=0.9)
        >>> low, high
        (array([5.]), array([95.]))
    """
    tail = 50 * (1 - level)
    empty = np.isnan(replicates).all(axis=0)
    filled = np.where(empty, 0.0, replicates)
    low, high = np.nanpercentile(filled, [tail, 100 - tail], axis=0)
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def intervals(estimate: Floats, replicates: Floats, level: float = LEVEL) -> list[Interval]:
    """Estimates with the percentile intervals of their bootstrap distributions, one a column."""
    low, high = percentile_interval(replicates, level)
    return [Interval(float(m), float(a), float(b)) for m, a, b in zip(estimate, low, high, strict=True)]


def _check(tables: Sequence[Floats], clusters: Sequence[Sequence[str]] | None) -> None:
    if not tables:
        raise ValueError("a bootstrap needs the scores of one repeat or more, got none")
    for repeat, table in enumerate(tables):
        if table.ndim != 2 or table.shape[1] != tables[0].shape[1]:
            raise ValueError(
                f"repeat {repeat} has scores of shape {table.shape}; expected (cases, {tables[0].shape[-1]})"
            )
        if not len(table):
            raise ValueError(f"repeat {repeat} has no test cases to resample; leave it out or evaluate it")
    rows = [len(table) for table in tables]
    if clusters is not None and rows != (named := [len(names) for names in clusters]):
        raise ValueError(f"clusters name {named} cases by repeat, the tables have {rows}; give one name a case")


def _numbered(names: Sequence[str | int]) -> NDArray[np.intp]:
    """Numbers of the clusters of a repeat's cases ``(n,)``, from 0 in the order of their first case."""
    number: dict[str | int, int] = {}
    return np.array([number.setdefault(name, len(number)) for name in names], dtype=np.intp)


def _pieces(replicates: int, cases: int) -> list[int]:
    """Sizes of the pieces in which replicates are drawn, so that memory stays bounded."""
    size = max(1, _DRAWS // max(cases, 1))
    return [min(size, replicates - start) for start in range(0, replicates, size)]


def _multiplicities(rng: np.random.Generator, replicates: int, cases: int) -> Floats:
    """How often each case is drawn in each replicate ``(B, n)``."""
    drawn = rng.integers(cases, size=(replicates, cases))
    drawn += np.arange(replicates)[:, None] * cases
    counts = np.bincount(drawn.ravel(), minlength=replicates * cases)
    return counts.reshape(replicates, cases).astype(np.float64)


def _case_means(rng: np.random.Generator, table: Floats, cluster: NDArray[np.intp], replicates: int) -> Floats:
    """Means ``(B, K)`` of a repeat's cases, whose clusters ``(n,)`` are drawn with replacement."""
    count = int(cluster.max()) + 1
    drawn = (_multiplicities(rng, size, count) for size in _pieces(replicates, len(table)))
    parts = [_weighted(times[:, cluster], table) for times in drawn]
    return np.concatenate(parts) if parts else np.empty((0, table.shape[1]))


def _weighted(weights: Floats, table: Floats) -> Floats:
    """Weighted means ``(B, K)`` of the rows of ``(n, K)`` under weights ``(B, n)``; NaN without any value."""
    held = ~np.isnan(table)
    total: Floats = weights @ np.where(held, table, 0.0)
    count = weights @ held.astype(np.float64)
    return ratio(total, count)


def mean_over(means: Floats) -> Floats:
    """Mean over the first axis of ``(R, B, K)``, NaN left out."""
    held = ~np.isnan(means)
    total: Floats = np.where(held, means, 0.0).sum(axis=0)
    count: Floats = held.sum(axis=0, dtype=np.float64)
    return ratio(total, count)


def ratio(total: Floats, count: Floats) -> Floats:
    """``total / count``; NaN where nothing was counted."""
    found: Floats = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return found
