"""Sigmoid outputs as problems of two classes, and regions that lie within each other.

A network with one output channel a region says by ``z > 0`` that a voxel lies in it. As two classes, outside and
inside, its scores are ``(0, z)``: the softmax of the second is the sigmoid of ``z``, to the bit of a tie the argmax is
the decision, and everything that is known of two classes holds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_calib.functional.pooling import Pooling, pool


def two_classes(logits: Tensor, dim: int) -> Tensor:
    """Scores ``(0, z)`` of two classes from one-channel scores ``z``.

    Args:
        logits: ``z``, without an axis of classes.
        dim: where the axis of the two classes comes to lie.

    Example:
        >>> two_classes(torch.tensor([[-1.0, 2.0]]), dim=1)
        tensor([[[ 0.,  0.],
                 [-1.,  2.]]])
    """
    return torch.stack([torch.zeros_like(logits), logits], dim=dim)


def log_odds(log_probs: Tensor, dim: int = 1) -> Tensor:
    """``log q_1 - log q_0`` of two classes; above 0 exactly where the second class has the larger value.

    Example:
        >>> log_odds(torch.tensor([[0.25, 0.75]]).log()).exp()
        tensor([3.])
    """
    return log_probs.select(dim, 1) - log_probs.select(dim, 0)


def pool_one_channel(logits: Tensor, pooling: Pooling) -> Tensor:
    """Pool the members' one-channel scores; ``p`` averages sigmoids.

    Args:
        logits: member scores ``(B, M, *S)``.
        pooling: ``z``, ``p`` or ``p0``.

    Returns:
        Log-odds ``(B, *S)``.

    Example:
        >>> members = torch.tensor([[0.2, 0.6]]).logit()
        >>> pool_one_channel(members, "p").sigmoid()
        tensor([0.4000])
    """
    return log_odds(pool(two_classes(logits, dim=2), pooling))  # of (B, M, 2, *S)


def strict_sigmoid(logits: Tensor) -> Tensor:
    """Sigmoid that is above 1/2 exactly where ``z > 0``: rounding alone would tie scores next to 0.

    Example:
        >>> strict_sigmoid(torch.tensor([1e-9, 0.0, -1e-9])) > 0.5
        tensor([ True, False, False])
    """
    half = torch.tensor(0.5, dtype=logits.dtype, device=logits.device)
    above = half + torch.finfo(logits.dtype).eps / 2
    return torch.where(logits > 0, logits.sigmoid().maximum(above), logits.sigmoid().minimum(half))


def supersets(labels: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each region, given by its labels, the numbers of the regions that it lies within.

    Example:
        >>> supersets([[1, 2, 3], [2, 3], [3]])
        [[], [0], [0, 1]]
    """
    sets = [frozenset(each) for each in labels]
    return [[number for number, other in enumerate(sets) if own < other] for own in sets]


def nest(scores: Tensor, within: Sequence[Sequence[int]], boundary: float = 0.0) -> Tensor:
    """Running minimum over regions that lie within each other.

    No region keeps a higher score than one that it lies within, except where the decisions themselves contradict each
    other (inside the smaller, outside the larger region): there the networks have decided so, and no decision is
    changed. All others stay as they are as well, since the minimum of two scores above 0 is above 0.

    Args:
        scores: log-odds ``(B, R, *S)``, or probabilities.
        within: for each region the regions that it lies within (:func:`supersets`).
        boundary: a voxel is inside where its score is above it: 0, or 1/2 for probabilities.

    Example:
        >>> nest(torch.tensor([[2.0, 3.0], [-1.0, 3.0]]), [[], [0]])
        tensor([[ 2.,  2.],
                [-1.,  3.]])
    """
    nested = list(scores.unbind(dim=1))
    for number in sorted(range(len(within)), key=lambda region: len(within[region])):  # larger regions first
        for larger in within[number]:
            small, large = nested[number], nested[larger]
            contradicts = (small > boundary) & (large <= boundary)
            nested[number] = torch.where(contradicts, small, torch.minimum(small, large))
    return torch.stack(nested, dim=1)
