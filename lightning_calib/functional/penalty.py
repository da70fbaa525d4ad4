"""The regulariser of affine calibrators."""

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum"]


def dirichlet_penalty(weight: Tensor, bias: Tensor, lam: float, mu: float, reduction: Reduction = "mean") -> Tensor:
    r"""Regulariser on off-diagonal weights and biases (Kull et al. 2019), the mean over experts.

    .. math:: R(W, b) = \frac{\lambda}{C(C-1)} \sum_{i \ne j} W_{ij}^2 + \frac{\mu}{C} \sum_j b_j^2

    Args:
        weight: ``W (E, C, C)``, the full matrices: a gauge-fixed one would punish the identity.
        bias: ``b (E, C)``.
        lam: strength on the off-diagonal weights.
        mu: strength on the biases.
        reduction: ``mean`` or ``sum`` over the experts.

    Example:
        >>> float(dirichlet_penalty(torch.eye(3)[None], torch.ones(1, 3), lam=1.0, mu=2.0))
        2.0
    """
    num_experts, num_classes = bias.shape
    share = expert_share(num_experts, reduction)
    diagonal = torch.eye(num_classes, dtype=torch.bool, device=weight.device)
    off_diagonal = weight.masked_fill(diagonal, 0).square().sum()
    return share * (lam / (num_classes * (num_classes - 1)) * off_diagonal + mu / num_classes * bias.square().sum())


def expert_share(num_experts: int, reduction: Reduction) -> float:
    """What the penalty of one expert counts.

    Example:
        >>> expert_share(4, "mean"), expert_share(4, "sum")
        (0.25, 1.0)
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"the penalty over experts is their 'mean' or their 'sum', got reduction={reduction!r}")
    return 1 / num_experts if reduction == "mean" else 1.0
