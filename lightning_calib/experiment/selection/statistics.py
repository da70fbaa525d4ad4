r"""What differences on held-out groups allow to conclude.

Every group ``g`` was judged by fits that had not seen it: ``d_g`` is the difference of two pipelines in the group's
mean NLL. The fits of two folds share most of their data, so that the ``d_g`` are not independent. With ``G`` groups in
``K`` folds the variance of their mean is taken as

.. math:: \frac{s^2}{G} \Bigl(1 + \frac{K}{K - 1}\Bigr)

with ``s`` the standard deviation over groups: the correction of Nadeau & Bengio (2003, "Inference for the
generalization error") for the share ``1 / (K - 1)`` of test to training data; quantiles are those of Student's
distribution with ``G - 1`` degrees of freedom.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lightning_calib.experiment.statistics import LEVEL, Floats, Interval


@dataclass(frozen=True)
class GroupGain:
    """What a pipeline gains over another on groups that its fits had not seen; positive is better.

    Attributes:
        gain: mean over groups of the NLL that it saves, with its corrected interval.
        share: share of the groups that gain; ties count half.
        worst_group: the group that gains least.
        worst_gain: its gain, negative where it loses.
        loss_probability: probability that a new group loses, if groups are like draws from a normal distribution.
        groups: how many groups there are.
    """

    gain: Interval
    share: float
    worst_group: str
    worst_gain: float
    loss_probability: float
    groups: int


def corrected_error(differences: Floats, folds: int) -> float:
    """Standard error of the mean of differences ``(G,)`` whose fits share data.

    Example:
        >>> round(corrected_error(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), folds=5), 3)
        1.061
    """
    spread = float(np.std(differences, ddof=1))
    return spread * math.sqrt((1 + folds / (folds - 1)) / len(differences))


def one_sided_p(differences: Floats, folds: int) -> float:
    """P-value of "no better on average" against "below 0", for differences ``(G,)``.

    Example:
        >>> one_sided_p(np.array([-1.0, -1.1, -0.9, -1.0, -1.0]), folds=5) < 1e-4
        True
        >>> one_sided_p(np.zeros(5), folds=5)
        1.0
    """
    mean, error = float(np.mean(differences)), corrected_error(differences, folds)
    if error == 0:
        return 0.0 if mean < 0 else 1.0
    return float(stats.t.cdf(mean / error, len(differences) - 1))


def group_gain(differences: Floats, names: Sequence[str], folds: int, level: float = LEVEL) -> GroupGain:
    """Sum up differences ``(G,)`` in NLL, negative where the pipeline is better.

    Args:
        differences: of each group.
        names: of the groups.
        folds: ``K``.
        level: level of the interval.

    Example:
        >>> found = group_gain(np.array([-0.2, -0.1, -0.3, 0.1, -0.2]), list("abcde"), folds=5)
        >>> round(found.gain.mean, 2), found.share, found.worst_group, round(found.loss_probability, 2)
        (0.14, 0.8, 'd', 0.24)
    """
    gains = -np.asarray(differences, dtype=np.float64)
    mean, error = float(np.mean(gains)), corrected_error(gains, folds)
    half = float(stats.t.ppf((1 + level) / 2, len(gains) - 1)) * error
    worst = int(np.argmin(gains))
    return GroupGain(
        gain=Interval(mean, mean - half, mean + half),
        share=float(np.mean(gains > 0) + np.mean(gains == 0) / 2),
        worst_group=names[worst],
        worst_gain=float(gains[worst]),
        loss_probability=_loss_probability(gains, error),
        groups=len(gains),
    )


def groups_needed(differences: Floats, folds: int, alpha: float) -> int | None:
    """About how many groups would make a mean like this one significant; None where it is no gain.

    Example:
        >>> groups_needed(np.array([-0.2, -0.1, 0.3, -0.1, -0.2]), folds=5, alpha=0.05)
        73
        >>> groups_needed(np.array([0.2, 0.1]), folds=2, alpha=0.05) is None
        True
    """
    mean, spread = float(np.mean(differences)), float(np.std(differences, ddof=1))
    if mean >= 0:
        return None
    quantile = float(stats.norm.ppf(1 - alpha))
    return max(len(differences), math.ceil((quantile * spread / mean) ** 2 * (1 + folds / (folds - 1))))


def strongest_within(nll: Floats, width: float = 1.0) -> int:
    r"""The strongest penalty that is not clearly worse than the best (one-standard-error rule, Breiman et al. 1984).

    Paired: a penalty ``s`` counts as no worse where the mean over groups of ``nll_s - nll_best`` is at most ``width``
    standard errors of that difference.

    Args:
        nll: held-out NLL ``(S, G)`` by strength, the strongest first.
        width: standard errors.

    Example:
        >>> strongest_within(np.array([[0.5, 0.9, 0.7], [0.40, 0.81, 0.6], [0.41, 0.80, 0.59]]))
        1
    """
    best = int(np.argmin(nll.mean(axis=1)))
    for strength in range(best):
        worse = nll[strength] - nll[best]
        if worse.mean() <= width * worse.std(ddof=1) / math.sqrt(len(worse)):
            return strength
    return best


def _loss_probability(gains: Floats, error: float) -> float:
    """``P(new gain < 0)`` by the predictive distribution of Student."""
    scale = math.sqrt(float(np.var(gains, ddof=1)) + error**2)
    mean = float(np.mean(gains))
    if scale == 0:
        return 0.5 if mean == 0 else float(mean < 0)
    return float(stats.t.cdf(-mean / scale, len(gains) - 1))
