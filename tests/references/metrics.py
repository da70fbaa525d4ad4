"""Slow, plain numpy: every score voxel by voxel, written from the definitions alone."""

from fractions import Fraction
from itertools import pairwise

import numpy as np


def voxels_of(log_probs, target, ignore_index=None):
    """List of (probabilities, label) of one image, (C, *S) and (*S)."""
    flat = np.asarray(log_probs, dtype=np.float64).reshape(log_probs.shape[0], -1).T
    labels = np.asarray(target).reshape(-1)
    return [(np.exp(row), int(y)) for row, y in zip(flat, labels, strict=True) if y != ignore_index]


def bin_of(confidence, num_bins):
    """Largest k with k/num_bins <= confidence, edges rounded to float64, last bin closed."""
    index = 0
    while index + 1 < num_bins and float(Fraction(index + 1, num_bins)) <= confidence:
        index += 1
    return index


def bins_of(events, num_bins):
    """Lists of (confidence, came true) sorted into bins."""
    bins = [[] for _ in range(num_bins)]
    for confidence, true in events:
        bins[bin_of(min(confidence, 1.0), num_bins)].append((min(confidence, 1.0), true))
    return bins


def gap(content):
    return abs(np.mean([c for c, _ in content]) - np.mean([t for _, t in content]))


def ece_of(events, num_bins):
    if not events:
        return np.nan
    return sum(len(b) / len(events) * gap(b) for b in bins_of(events, num_bins) if b)


def top_events(voxels):
    return [(float(q.max()), int(q.argmax()) == y) for q, y in voxels]


def ece(voxels, num_bins):
    return ece_of(top_events(voxels), num_bins)


def ace(voxels, num_bins):
    gaps = [gap(b) for b in bins_of(top_events(voxels), num_bins) if b]
    return np.mean(gaps) if gaps else np.nan


def mce(voxels, num_bins):
    return max((gap(b) for b in bins_of(top_events(voxels), num_bins) if b), default=np.nan)


def classwise_ece(voxels, num_bins):
    if not voxels:
        return np.nan
    classes = range(len(voxels[0][0]))
    return np.mean([ece_of([(float(q[c]), y == c) for q, y in voxels], num_bins) for c in classes])


def nll(voxels):
    with np.errstate(divide="ignore"):
        return np.mean([-np.log(q[y]) for q, y in voxels]) if voxels else np.nan


def brier(voxels):
    return np.mean([np.sum((q - np.eye(len(q))[y]) ** 2) for q, y in voxels]) if voxels else np.nan


def dice(voxels, num_classes, leave_out=()):
    scores = []
    for c in set(range(num_classes)) - set(leave_out):
        both = sum(int(q.argmax()) == c and y == c for q, y in voxels)
        either = sum((int(q.argmax()) == c) + (y == c) for q, y in voxels)
        if either:
            scores.append(2 * both / either)
    return np.mean(scores) if scores else np.nan


def iou(voxels, num_classes):
    scores = []
    for c in range(num_classes):
        found, true = (
            {n for n, v in enumerate(voxels) if of(v) == c} for of in (lambda v: v[0].argmax(), lambda v: v[1])
        )
        if found | true:
            scores.append(len(found & true) / len(found | true))
    return np.mean(scores) if scores else np.nan


def flips(voxels, before):
    """(rate, harmful, beneficial, neutral) against the classes before."""
    changed = [(b == y, int(q.argmax()) == y) for (q, y), b in zip(voxels, before, strict=True) if q.argmax() != b]
    kinds = [sum(a and not b for a, b in changed), sum(b for _, b in changed)]
    return len(changed), kinds[0], kinds[1], len(changed) - sum(kinds)


def distances(target, ignore_index=None):
    """Distance of every voxel to the nearest boundary voxel, by comparing all pairs."""
    places = list(np.ndindex(target.shape))
    edge = []
    for place in places:
        for axis in range(target.ndim):
            for step in (-1, 1):
                other = list(place)
                other[axis] += step
                inside = 0 <= other[axis] < target.shape[axis]
                pair = {target[tuple(other)], target[place]} if inside else set()
                if len(pair) == 2 and ignore_index not in pair:
                    edge.append(place)
    out = np.full(target.shape, np.inf)
    for place in places if edge else []:
        out[place] = np.sqrt(min(sum((a - b) ** 2 for a, b in zip(place, e, strict=True)) for e in set(edge)))
    return out


def ba_ece(log_probs, target, edges=(0, 3, 7, 15, np.inf), ignore_index=None):
    away = distances(target, ignore_index).reshape(-1)
    flat = log_probs.reshape(log_probs.shape[0], -1).T
    rows = []
    for d, scores, y in zip(away, flat, target.reshape(-1), strict=True):
        if y != ignore_index:
            q = np.exp(np.float64(scores))
            rows.append((d, 1 - min(q.max(), 1.0), float(q.argmax() != y)))
    if not rows:
        return np.nan
    if all(np.isinf(d) for d, _, _ in rows):
        return abs(np.mean([u for _, u, _ in rows]) - np.mean([e for _, _, e in rows]))
    weights, gaps = [], []
    for low, high in pairwise(edges):
        band = [row for row in rows if low <= row[0] < high]
        if band:
            weights.append(1 / (1 + np.mean([d for d, _, _ in band])))
            gaps.append(abs(np.mean([u for _, u, _ in band]) - np.mean([e for _, _, e in band])))
    return np.dot(weights, gaps) / np.sum(weights)


def space(log_probs, target, sigma, ignore_index=None):
    """Gaussian-weighted means by comparing all pairs of voxels."""
    places = [p for p in np.ndindex(target.shape) if target[p] != ignore_index]
    if not places:
        return np.nan
    gaps = []
    for p in places:
        q = np.exp(np.float64(log_probs[(slice(None), *p)]))
        gaps.append((1 - q.max()) - float(q.argmax() != target[p]))
    reach = int(np.ceil(4 * sigma))
    smooth = []
    for p in places:
        steps = [np.subtract(p, o) for o in places]
        weights = [np.exp(-0.5 * np.sum(s**2) / sigma**2) if np.abs(s).max() <= reach else 0.0 for s in steps]
        smooth.append(abs(np.dot(weights, gaps) / np.sum(weights)))
    return np.mean(smooth)


def free_energy_std(logits, target=None, ignore_index=None):
    flat = np.asarray(logits, dtype=np.float64).reshape(logits.shape[0], -1).T
    labels = np.zeros(len(flat)) if target is None else target.reshape(-1)
    energy = [np.log(np.sum(np.exp(z))) for z, y in zip(flat, labels, strict=True) if y != ignore_index]
    return np.std(energy) if energy else np.nan
