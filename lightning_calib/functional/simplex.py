"""Weights on the simplex, and mixtures of log-probabilities by them."""

import torch
from torch import Tensor

from lightning_calib.functional.bounds import within

# Components of weight 0 may exceed the others by this factor (e^80) in a gradient before it is cut: the value is
# not touched, and float32 still holds the number.
_MAX_LOG_RATIO = 80.0


_SUMS = 1e-2  # how far sums of probabilities may lie from 1: float16 with many classes needs as much


def are_probabilities(scores: Tensor, dim: int = 1) -> bool:
    """Whether all scores lie in [0, 1] with sums of 1 along an axis: the output of a softmax, not its input.

    Example:
        >>> scores = torch.tensor([[2.0, -1.0, 0.5]])
        >>> are_probabilities(scores), are_probabilities(scores.softmax(1))
        (False, True)
    """
    if not scores.numel():
        return False
    scores = scores.float()
    inside = float(scores.min()) >= -_SUMS and float(scores.max()) <= 1 + _SUMS
    return inside and float((scores.sum(dim=dim) - 1).abs().max()) <= _SUMS


def on_simplex(weights: Tensor) -> Tensor:
    """Weights ``(K,)`` that are at least 0 and sum to 1, from any numbers: negative ones count as 0.

    A weight can reach 0 and leave it again: the gradient passes there. Without a positive one, all is on the first.

    Example:
        >>> on_simplex(torch.tensor([3.0, 1.0, -2.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    positive = within(weights, low=0.0)
    first = torch.eye(len(weights), dtype=weights.dtype, device=weights.device)[0]
    positive = torch.where(positive.sum() > 0, positive, first)
    positive = positive / positive.detach().amax(dim=0)  # their sum must not overflow
    return positive / positive.sum()


def nearest_on_simplex(weights: Tensor) -> Tensor:
    """The point of the simplex that is nearest to ``weights (K,)`` (Held, Wolfe & Crowder 1974).

    Example:
        >>> nearest_on_simplex(torch.tensor([0.8, -0.3, 0.4]))
        tensor([0.7000, 0.0000, 0.3000])
    """
    ordered = weights.sort(descending=True).values
    surplus = (ordered.cumsum(0) - 1) / torch.arange(1, len(weights) + 1, device=weights.device)
    last = (ordered > surplus).sum(dim=0, keepdim=True).clamp(min=1) - 1  # no device is waited for
    return (weights - surplus.gather(0, last)).clamp(min=0)


def log_mixture(log_probs: Tensor, weights: Tensor) -> Tensor:
    r"""Log of a mixture, relative to its largest component of positive weight.

    .. math:: \log \sum_k w_k q_k

    Args:
        log_probs: ``log q (K, ...)``.
        weights: ``w (K,)`` on the simplex; their gradient is right at 0, too.

    Returns:
        ``(...)``.

    Example:
        >>> log_mixture(torch.tensor([[0.5], [0.1]]).log(), torch.tensor([0.75, 0.25])).exp()
        tensor([0.4000])
    """
    weights = weights.to(log_probs.dtype).view(-1, *(1 for _ in log_probs.shape[1:]))
    out = torch.where(weights.detach() > 0, 0.0, -torch.inf)  # a sum of all values is faster than a choice of each
    largest = (log_probs.detach() + out.to(log_probs.dtype)).amax(dim=0)
    ratios = (log_probs - largest).clamp(max=_MAX_LOG_RATIO).exp()
    return largest + (weights * ratios).sum(dim=0).log()
