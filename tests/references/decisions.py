"""Slow oracles of lightning_calib.decisions, in plain Python; no code is shared with it."""

from fractions import Fraction
from math import ceil, comb, exp, log, sqrt

import numpy as np


def table(probs, truth, counted, thresholds):
    """Voxels by truth in the mask of each threshold, one voxel at a time."""
    found = np.zeros((2, len(thresholds)), dtype=int)
    for p, y, c in zip(probs.ravel(), truth.ravel(), counted.ravel(), strict=True):
        for k, t in enumerate(thresholds):
            found[int(y), k] += bool(c and p >= t)
    return found


def missed(probs, truth, t):
    """Share of the true voxels below a threshold."""
    return float((probs[truth] < t).mean()) if truth.any() else 0.0


def false(probs, truth, t):
    """Share of a mask's voxels that are false."""
    mask = probs >= t
    return float((~truth[mask]).mean()) if mask.any() else 0.0


def crc(curves, alpha, side):
    """Number of the threshold by conformal risk control: walk from the safest mask on, with exact fractions."""
    count = len(curves[0])
    order = range(count) if side == "outer" else range(count - 1, -1, -1)
    worst, found = [Fraction(0)] * len(curves), None
    for k in order:
        worst = [max(w, Fraction(float(curve[k]))) for w, curve in zip(worst, curves, strict=True)]
        if (sum(worst) + 1) / (len(curves) + 1) > Fraction(alpha) + Fraction(1, 10**11):
            break
        found = k
    return found


def dice(mask, truth):
    """Dice of two masks."""
    return 2 * float((mask & truth).sum()) / float(mask.sum() + truth.sum())


def certainty(probs, mask, counted):
    """1 minus the mean binary entropy at counted voxels with a counted face neighbour on the other side."""
    found = []
    for place in np.ndindex(probs.shape):
        for axis in range(probs.ndim):
            for step in (-1, 1):
                other = tuple(x + step * (k == axis) for k, x in enumerate(place))
                if not all(0 <= x < size for x, size in zip(other, probs.shape, strict=True)):
                    continue
                if counted[place] and counted[other] and mask[place] != mask[other]:
                    found.append(place)
    places = set(found)
    entropy = [-sum(q * np.log2(q) for q in (probs[p], 1 - probs[p]) if q > 0) for p in places]
    return 1 - float(np.mean(entropy))


def mean_aurc(score, risk):
    """Mean over coverages of the risk of the surest cases; a tied case counts by its chance of being among them."""
    n, total = len(score), 0.0
    for k in range(1, n + 1):
        picked = 0.0
        for s, r in zip(score, risk, strict=True):
            above, level = int((score > s).sum()), int((score == s).sum())
            picked += r * min(max((k - above) / level, 0), 1)
        total += picked / k
    return total / n


def parts(mask):
    """Sets of voxels that hang together by faces, by flooding."""
    left, found = {tuple(map(int, p)) for p in np.argwhere(mask)}, []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            place = edge.pop()
            part.add(place)
            for axis in range(len(place)):
                for step in (-1, 1):
                    other = tuple(x + step * (k == axis) for k, x in enumerate(place))
                    if other in left:
                        left.remove(other)
                        edge.append(other)
        found.append(part)
    return found


def hoeffding_bentkus(values, alpha, delta):
    """Excess of the p-value of a risk above alpha over delta."""
    n, mean = len(values), sum(values) / len(values)
    a = min(mean, alpha)
    divergence = (a * log(a / alpha) if a > 0 else 0) + ((1 - a) * log((1 - a) / (1 - alpha)) if a < 1 else 0)
    tail = sum(comb(n, k) * alpha**k * (1 - alpha) ** (n - k) for k in range(ceil(n * mean - 1e-9) + 1))
    return min(exp(-n * divergence), exp(1) * tail) - delta


def betting(values, alpha, delta):
    """What the best moment of a bettor against a risk above alpha lacks to 1 / delta, in logarithms."""
    n, variance, wealth, best = len(values), 0.25, 0.0, -float("inf")
    total = squares = 0.0
    for i, loss in enumerate(values, 1):
        bet = min(1, sqrt(2 * log(1 / delta) / (n * variance)))
        wealth += log(1 - bet * (loss - alpha))
        best = max(best, wealth)
        total += loss
        squares += (loss - (0.5 + total) / (1 + i)) ** 2
        variance = (0.25 + squares) / (1 + i)
    return log(1 / delta) - best
