r"""Masks with a guaranteed risk: conformal risk control, and control with high probability.

Groups :math:`g = 1 \dots G` are exchangeable. Their losses :math:`L_g(t)`, means over the cases of a group, lie in
[0, 1]. Where a loss is not monotone in the threshold, its envelope takes its place: the largest loss of this and all
larger (inner masks: smaller thresholds are larger masks) or smaller thresholds that are still to be crossed,

.. math::
    \tilde L_g(t_k) = \max_{j \le k} L_g(t_j) \text{ (outer)}, \qquad
    \tilde L_g(t_k) = \max_{j \ge k} L_g(t_j) \text{ (inner)}.

It is monotone and at least :math:`L_g`, so that whatever holds for its mean holds for the loss. A monotone loss is its
own envelope.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import e, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from lightning_calib.decisions.risks import Side

Floats = NDArray[np.float64]
Method = Literal["crc", "hb", "wsr"]

_SLACK = 1e-12  # of rounding, in comparisons with alpha


class TooFewGroupsError(ValueError):
    """There are too few groups for what is to be promised."""


def crc_safe(losses: Floats, alpha: float, delta: float = 0.0) -> NDArray[np.bool_]:
    r"""Where the mean is controlled (conformal risk control, Angelopoulos et al. 2022).

    .. math:: \frac{1}{G + 1} \Bigl( \sum_g \tilde L_g(t) + 1 \Bigr) \le \alpha

    The most extreme such threshold has an expected loss of at most alpha on a new group.

    Args:
        losses: envelopes ``(G, K)``.
        alpha: bound of the expected loss.
        delta: not used.

    Example:
        >>> crc_safe(np.zeros((9, 1)), 0.1), crc_safe(np.zeros((8, 1)), 0.1)
        (array([ True]), array([False]))
    """
    found: NDArray[np.bool_] = (losses.sum(axis=0) + 1) / (len(losses) + 1) <= alpha + _SLACK
    return found


def hb_safe(losses: Floats, alpha: float, delta: float) -> NDArray[np.bool_]:
    r"""Where the p-value of Hoeffding and Bentkus for a risk above alpha is at most delta (Bates et al. 2021).

    .. math:: p = \min\bigl( e^{-G\, h(\min(\hat R, \alpha), \alpha)},\ e\, P(\mathrm{Bin}(G, \alpha) \le
        \lceil G \hat R \rceil) \bigr)

    with :math:`h` the divergence of two coins.

    Example:
        >>> hb_safe(np.zeros((22, 1)), 0.1, 0.1), hb_safe(np.zeros((21, 1)), 0.1, 0.1)
        (array([ True]), array([False]))
    """
    groups, mean = len(losses), losses.mean(axis=0)
    below = np.minimum(mean, alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = np.where(below > 0, below * np.log(below / alpha), 0.0)
    divergence = heads + (1 - below) * np.log((1 - below) / (1 - alpha))
    bentkus = e * binom.cdf(np.ceil(groups * mean - 1e-9), groups, alpha)
    found: NDArray[np.bool_] = np.minimum(np.exp(-groups * divergence), bentkus) <= delta + _SLACK
    return found


def wsr_safe(losses: Floats, alpha: float, delta: float) -> NDArray[np.bool_]:
    r"""Where a bettor against a risk above alpha has won 1 / delta (Waudby-Smith & Ramdas 2020; Bates et al. 2021).

    .. math::
        \max_i \prod_{j \le i} \bigl(1 - \nu_j (L_j - \alpha)\bigr) \ge \frac1\delta, \qquad
        \nu_j = \min\Bigl(1, \sqrt{\tfrac{2 \log(1 / \delta)}{G\, \hat\sigma^2_{j-1}}}\Bigr)

    with the variance of the groups before. It is the sharper one where losses vary little.

    Example:
        >>> wsr_safe(np.zeros((25, 1)), 0.1, 0.1), wsr_safe(np.zeros((24, 1)), 0.1, 0.1)
        (array([ True]), array([False]))
    """
    counts = np.arange(1, len(losses) + 1)[:, None]
    means = (0.5 + losses.cumsum(axis=0)) / (1 + counts)
    variances = (0.25 + ((losses - means) ** 2).cumsum(axis=0)) / (1 + counts)
    before = np.vstack([np.full((1, losses.shape[1]), 0.25), variances[:-1]])
    bets = np.minimum(1, np.sqrt(2 * log(1 / delta) / (len(losses) * before)))
    wealth = np.log1p(-bets * (losses - alpha)).cumsum(axis=0)
    found: NDArray[np.bool_] = wealth.max(axis=0) >= -log(delta)
    return found


METHODS: dict[Method, Callable[[Floats, float, float], NDArray[np.bool_]]] = {
    "crc": crc_safe,
    "hb": hb_safe,
    "wsr": wsr_safe,
}


def least_groups(alpha: float, method: Method = "crc", delta: float = 0.1) -> int:
    """Groups without any loss that a method needs before it calls anything safe.

    Example:
        >>> least_groups(0.1), least_groups(0.05), least_groups(0.1, "hb", 0.1)
        (9, 19, 22)
    """
    for name, value in (("alpha", alpha), ("delta", delta)):
        if not 0 < value < 1:
            raise ValueError(f"{name} {value}: give a share between 0 and 1, such as 0.1")

    def enough(groups: int) -> bool:
        return bool(METHODS[method](np.zeros((groups, 1)), alpha, delta)[0])

    high = 1
    while not enough(high):
        high *= 2
    low = high // 2  # not enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def envelope(losses: Floats, side: Side) -> Floats:
    """The smallest monotone losses ``(G, K)`` that are at least these, thresholds rising.

    Example:
        >>> envelope(np.array([[0.6, 0.2, 0.5, 0.0]]), "inner").tolist()
        [[0.6, 0.5, 0.5, 0.0]]
    """
    if side == "outer":
        return np.maximum.accumulate(losses, axis=1)
    return np.maximum.accumulate(losses[:, ::-1], axis=1)[:, ::-1]


@dataclass(frozen=True)
class Control:
    """What is promised, and how.

    Attributes:
        side: outer masks, for losses that fall as masks grow, or inner ones.
        alpha: bound of the expected loss.
        method: ``crc`` bounds the expectation over new groups and over the groups that the threshold comes from;
            ``hb`` and ``wsr`` bound that over new groups, with probability ``1 - delta`` over the others.
        delta: of ``hb`` and ``wsr``.
    """

    side: Side
    alpha: float
    method: Method = "crc"
    delta: float = 0.1

    def choose(self, losses: Floats) -> int:
        """Number of the threshold: the smallest outer, or the largest inner mask that is safe, all beyond it safe, too.

        Args:
            losses: of groups, in an order that does not depend on them ``(G, K)``; thresholds rise.

        Raises:
            TooFewGroupsError: where even groups without any loss would be too few.

        Example:
            >>> Control("outer", 0.5).choose(np.array([[0.0, 0.1, 0.9], [0.0, 0.3, 0.8]]))
            1
        """
        self.refuse_few(len(losses))
        safe = METHODS[self.method](envelope(losses, self.side), self.alpha, self.delta)
        safe = safe if self.side == "outer" else safe[::-1]
        steps = int(np.argmin(safe)) if not safe.all() else len(safe)
        if steps == 0:
            least = losses[:, 0 if self.side == "outer" else -1].mean()
            raise ValueError(
                f"no mask holds a risk of {self.alpha:g}: the safest one has a mean loss of {least:.3g} over "
                f"{len(losses)} groups; a higher alpha or another loss is needed"
            )
        return steps - 1 if self.side == "outer" else len(safe) - steps

    def refuse_few(self, groups: int) -> None:
        """Stop where even groups without any loss would be too few.

        Raises:
            TooFewGroupsError: with the number that is needed.
        """
        needed = least_groups(self.alpha, self.method, self.delta)
        if groups < needed:
            raise TooFewGroupsError(
                f"to hold a risk of {self.alpha:g} by {self.method}, {needed} groups of labelled cases are needed that "
                f"the calibrator was not fitted on, there are {groups}: take more groups or a higher alpha"
            )

    def held_out(self, losses: Floats, units: Sequence[str]) -> Floats:
        """Loss of each group ``(G,)`` at the threshold that the groups of other units choose.

        With a unit a group, the mean estimates the risk of a threshold from one group fewer, and no group is judged
        by itself. Larger units, such as sites of patients, show what happens where groups are not exchangeable.

        Args:
            losses: of groups ``(G, K)``.
            units: what each group is held out with.

        Returns:
            NaN where the others are too few.
        """
        found, place = np.full(len(losses), np.nan), np.asarray(units)
        for unit in np.unique(place):
            own = place == unit
            try:
                found[own] = losses[own, self.choose(losses[~own])]
            except TooFewGroupsError:
                continue
        return found
