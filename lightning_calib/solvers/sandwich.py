r"""How sure a temperature is, where voxels of one group are not independent.

With ``theta = 1/T``, and gradient ``g_k`` and curvature ``h_k`` of the mean NLL of group ``k`` at the optimum over all
``G`` groups, the cluster-robust ("sandwich") variance is

.. math:: V(\theta) = \frac{G}{G - 1} \frac{\sum_k g_k^2}{(\sum_k h_k)^2}

(Liang & Zeger 1986). Few groups with much of the curvature count like fewer groups: with ``\gamma_k`` the variance
of a group's gradient, here ``h_k^2`` as if a group had a temperature of its own, their effective number is
``(\sum_k \gamma_k)^2 / \sum_k \gamma_k^2`` (Carter, Schnepel & Steigerwald 2017). Intervals are Student's, with one
degree of freedom less than that.
"""

import math
from dataclasses import dataclass

from scipy import stats
from torch import Tensor

LEVEL = 0.95


@dataclass(frozen=True)
class TemperatureInterval:
    """A temperature and how sure it is.

    Attributes:
        temperature: ``T``.
        log_error: standard error of ``log T``, robust to what voxels of a group share.
        low: lower end of the interval of ``T``.
        high: upper end.
        groups: number of groups.
        effective_groups: how many equal groups would tell as much.
    """

    temperature: float
    log_error: float
    low: float
    high: float
    groups: int
    effective_groups: float


def temperature_derivatives(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """First and second derivative ``(n,)`` of ``-log q_y`` in ``1/T``.

    Args:
        logits: ``(C, n)``.
        target: labels ``(n,)``, none ignored.
        temperature: ``T``.

    Example:
        >>> import torch
        >>> slope, curvature = temperature_derivatives(torch.tensor([[2.0], [0.0]]), torch.tensor([0]), 1.0)
        >>> round(slope.item(), 4), round(curvature.item(), 4)
        (-0.2384, 0.42)
    """
    scores = (logits - logits.amax(0)).double()
    probs = (scores / temperature).softmax(0)
    mean = (probs * scores).sum(0)
    slope = mean - scores.gather(0, target[None].long())[0]
    return slope, (probs * (scores - mean).square()).sum(0)


def temperature_interval(
    temperature: float, slopes: Tensor, curvatures: Tensor, level: float = LEVEL
) -> TemperatureInterval:
    """Interval of a temperature that was fitted to the mean over groups.

    Args:
        temperature: the optimum.
        slopes: of the mean NLL of each group in ``1/T``, ``(G,)``.
        curvatures: second derivatives ``(G,)``.
        level: of the interval.

    Example:
        >>> import torch
        >>> found = temperature_interval(2.0, torch.tensor([0.1, -0.1, 0.1, -0.1]), torch.ones(4))
        >>> round(found.log_error, 3), found.effective_groups
        (0.115, 4.0)
    """
    groups, bread = len(slopes), float(curvatures.sum())
    shares = curvatures.double().square()
    effective = float(shares.sum() ** 2 / shares.square().sum()) if bread > 0 else 0.0
    if groups < 2 or effective <= 1:
        return TemperatureInterval(temperature, math.inf, 0.0, math.inf, groups, effective)
    error = math.sqrt(groups / (groups - 1) * float(slopes.double().square().sum())) / bread
    log_error = error * temperature  # d log T = -T d(1/T)
    half = float(stats.t.ppf((1 + level) / 2, effective - 1)) * log_error
    low, high = (temperature * math.exp(max(-700.0, min(700.0, sign * half))) for sign in (-1, 1))
    return TemperatureInterval(temperature, log_error, low, high, groups, effective)
