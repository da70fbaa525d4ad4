"""How well a score tells which cases are worth a look: ranking, risk and coverage, errors caught."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]


def spearman(score: Floats, truth: Floats) -> float:
    """Correlation of two rankings ``(n,)``, ties at their mean rank; NaN where one of them does not vary.

    Example:
        >>> spearman(np.array([0.1, 0.5, 0.9]), np.array([1.0, 2.0, 7.0]))
        1.0
    """
    a, b = (rank - rank.mean() for rank in (rankdata(score), rankdata(truth)))
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def risk_curve(score: Floats, risk: Floats) -> Floats:
    r"""Mean risk of the ``k`` surest cases, for ``k = 1 .. n``.

    .. math:: r_k = \frac1k \sum_{i \le k} \ell_{(i)}

    with the cases in the order of falling score. Cases of one score have the mean risk of all of them: what comes out
    on average where ties are broken at random.

    Args:
        score: high for cases that need no look ``(n,)``.
        risk: what is wrong with each case, such as 1 minus its Dice ``(n,)``.

    Example:
        >>> risk_curve(np.array([0.9, 0.5, 0.1]), np.array([0.0, 0.2, 0.7])).tolist()
        [0.0, 0.1, 0.3]
    """
    ordered = _ordered(score, risk)
    curve: Floats = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    return curve


def aurc(score: Floats, risk: Floats) -> float:
    """Area under the risk-coverage curve: the mean of :func:`risk_curve` (Geifman et al. 2019)."""
    return float(risk_curve(score, risk).mean())


def excess_aurc(score: Floats, risk: Floats) -> float:
    """What the area under the curve exceeds that of the best order by.

    Example:
        >>> excess_aurc(np.array([0.9, 0.5, 0.1]), np.array([0.0, 0.2, 0.7]))
        0.0
    """
    return aurc(score, risk) - aurc(-risk, risk)


def caught(score: Floats, risk: Floats, share: float) -> float:
    """Share of the whole risk that a look at the lowest-scored share of the cases finds; a case may count in part.

    Without knowledge it is the share itself. NaN where there is no risk.

    Example:
        >>> round(caught(np.array([0.9, 0.8, 0.7, 0.1]), np.array([0.0, 0.1, 0.1, 0.6]), 0.5), 3)
        0.875
    """
    worst_first = _ordered(score, risk)[::-1]
    places = np.clip(share * len(risk) - np.arange(len(risk)), 0, 1)
    total = risk.sum()
    return float(places @ worst_first / total) if total > 0 else float("nan")


def _ordered(score: Floats, risk: Floats) -> Floats:
    """Risks in the order of falling score, ties at their mean."""
    values, place, count = np.unique(-score, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=risk, minlength=len(values)) / count
    ordered: Floats = np.repeat(means, count)
    return ordered
