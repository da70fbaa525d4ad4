"""The regulariser of affine calibrators."""

import torch
from torch import Tensor


def dirichlet_penalty(weight: Tensor, bias: Tensor, lam: float, mu: float) -> Tensor:
    r"""Regulariser on off-diagonal weights and biases (Kull et al. 2019), summed over experts.

    .. math:: R(W, b) = \frac{\lambda}{C(C-1)} \sum_{i \ne j} W_{ij}^2 + \frac{\mu}{C} \sum_j b_j^2

    Args:
        weight: ``W (E, C, C)``, the full matrices: a gauge-fixed one would punish the identity.
        bias: ``b (E, C)``.
        lam: strength on the off-diagonal weights.
        mu: strength on the biases.

    Example:
        >>> float(dirichlet_penalty(torch.eye(3)[None], torch.ones(1, 3), lam=1.0, mu=2.0))
        2.0
    """
    num_classes = bias.shape[-1]
    diagonal = torch.eye(num_classes, dtype=torch.bool, device=weight.device)
    off_diagonal = weight.masked_fill(diagonal, 0).square().sum()
    return lam / (num_classes * (num_classes - 1)) * off_diagonal + mu / num_classes * bias.square().sum()
