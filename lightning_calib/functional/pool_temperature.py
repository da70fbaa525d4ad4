"""The temperature of a pool of calibrated networks, which needs no labels."""

from math import exp, log

import torch
from scipy.optimize import brentq
from torch import Tensor

# Temperatures that are looked for. Networks that contradict each other everywhere would have 0.
LOWEST, HIGHEST = 1 / 64, 8.0


def mean_entropy(log_probs: Tensor) -> Tensor:
    """Mean over networks and voxels of ``-sum_k p_k log p_k``.

    Args:
        log_probs: ``(M, C, n)``.
    """
    entropy: Tensor = torch.special.entr(log_probs.double().exp())
    return entropy.sum(dim=1).mean()


def pool_temperature(log_probs: Tensor) -> float:
    r"""Temperature at which the mean of calibrated log-probabilities has the least NLL, as the networks imply it.

    The NLL of a pool ``S(u / T)``, ``u = mean_m u_m``, has its optimum in ``T`` where

        E[u . S(u / T)] = E[u . y],

    with ``y`` the label as a unit vector. The right side is linear in ``u``: it is the mean of ``E[u_m . y]``. And a
    network that no temperature makes better, such as one that was calibrated on cases like these, has
    ``E[u_m . y] = E[u_m . S(u_m)]``, minus its mean entropy. So ``T`` solves

        E[u . S(u / T)] + mean_m E[H(S(u_m))] = 0

    without a label. The left side falls as ``T`` rises: there is one solution. Networks that agree have ``T = 1``; the
    more they disagree, the lower it is.

    Args:
        log_probs: calibrated log-probabilities ``(M, C, n)`` of M networks at n voxels.

    Returns:
        ``T``, within 1/64 and 8.

    Example:
        >>> alike = torch.tensor([[0.9, 0.6], [0.1, 0.4]]).log().expand(3, 2, 2)
        >>> round(pool_temperature(alike), 6)
        1.0
        >>> pool_temperature(torch.tensor([[[0.9], [0.1]], [[0.6], [0.4]]]).log()) < 1
        True
    """
    pooled, entropy = log_probs.double().mean(dim=0), mean_entropy(log_probs)

    def excess(log_temperature: float) -> float:
        probs = (pooled / exp(log_temperature)).softmax(dim=0)
        return float((pooled * probs).sum(dim=0).mean() + entropy)

    lowest, highest = log(LOWEST), log(HIGHEST)
    if excess(lowest) <= 0:
        return LOWEST
    return HIGHEST if excess(highest) >= 0 else exp(brentq(excess, lowest, highest, xtol=1e-9))
