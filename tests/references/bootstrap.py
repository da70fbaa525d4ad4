"""Slow bootstraps: plain loops, and the exact distribution by enumeration."""

from itertools import product

import numpy as np


def two_level_loop(columns, replicates, seed, names=None):
    """Draw repeats, then cases, or groups of them by name, within each drawn repeat; one replicate at a time."""
    rng = np.random.default_rng(seed)
    names = names or [range(len(column)) for column in columns]
    groups = [
        [[v for v, other in zip(column, own, strict=True) if other == name] for name in set(own)]
        for column, own in zip(columns, names, strict=True)
    ]
    means = []
    for _ in range(replicates):
        slots = []
        for _ in columns:
            held = groups[rng.integers(len(columns))]
            drawn = [value for _ in held for value in held[rng.integers(len(held))]]
            kept = [value for value in drawn if not np.isnan(value)]
            if kept:
                slots.append(sum(kept) / len(kept))
        means.append(sum(slots) / len(slots) if slots else float("nan"))
    return np.array(means)


def two_level_exact(columns):
    """Every value of the replicate mean with its probability; for tiny tables."""
    case_means = [[(np.mean(draw), len(v) ** -len(v)) for draw in product(v, repeat=len(v))] for v in columns]
    chances = {}
    for repeats in product(range(len(columns)), repeat=len(columns)):
        for picks in product(*(case_means[r] for r in repeats)):
            value = round(float(np.mean([mean for mean, _ in picks])), 12)
            chance = float(np.prod([p for _, p in picks])) * len(columns) ** -len(columns)
            chances[value] = chances.get(value, 0.0) + chance
    return chances


def clustered_loop(columns, names, replicates, seed):
    """Draw cases from the union of all repeats; each brings its values of all repeats."""
    rng = np.random.default_rng(seed)
    union = sorted({name for part in names for name in part})
    means = []
    for _ in range(replicates):
        drawn = [union[rng.integers(len(union))] for _ in union]
        slots = []
        for values, part in zip(columns, names, strict=True):
            held = dict(zip(part, values, strict=True))
            kept = [held[name] for name in drawn if name in held and not np.isnan(held[name])]
            if kept:
                slots.append(sum(kept) / len(kept))
        means.append(sum(slots) / len(slots))
    return np.array(means)
