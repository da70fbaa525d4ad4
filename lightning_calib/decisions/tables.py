r"""Voxels of a structure by calibrated probability and truth: one pass over a case serves every threshold."""

import torch
from torch import Tensor

EMPTY = 2.0  # a threshold that no probability reaches

_LOG_ODDS = torch.linspace(-12, 12, 2401, dtype=torch.float64)
THRESHOLDS = torch.cat([torch.zeros(1), _LOG_ODDS.sigmoid(), torch.tensor([EMPTY])])
"""The grid of thresholds ``(K,)``, float64: 0, where a mask holds every voxel; steps of 0.01 in log-odds, which are at
most 0.0025 in probability, from 6e-6 to 1 - 6e-6; and 2, where it holds none."""


def inside(probs: Tensor, threshold: float) -> Tensor:
    """The mask ``(*S)`` of a threshold: voxels whose probability reaches it, compared in float64.

    Example:
        >>> inside(torch.tensor([0.2, 0.5, 0.9]), 0.5)
        tensor([False,  True,  True])
    """
    return probs.double() >= threshold


def threshold_table(probs: Tensor, truth: Tensor, counted: Tensor) -> Tensor:
    r"""Voxels of a case that are in the mask of each threshold, without and within the true structure.

    .. math:: n_{yk} = \#\{v : y_v = y,\ p_v \ge t_k\}

    Args:
        probs: calibrated probability of the structure ``(*S)``.
        truth: true voxels of the structure, bool ``(*S)``.
        counted: voxels that count, bool ``(*S)``.

    Returns:
        ``n (2, K)``, int64; column 0 holds all voxels, the last one none, and rows never rise.

    Example:
        >>> truth = torch.tensor([False, False, True])
        >>> table = threshold_table(torch.tensor([0.1, 0.6, 0.9]), truth, torch.ones(3, dtype=torch.bool))
        >>> table[:, [0, int((THRESHOLDS < 0.5).sum()), -1]]
        tensor([[2, 1, 0],
                [1, 1, 0]])
    """
    size = len(THRESHOLDS)
    values = probs[counted].double()
    place = torch.bucketize(values, THRESHOLDS.to(values.device), right=True) - 1
    cells = (place + size * truth[counted]).bincount(minlength=2 * size).view(2, size)
    return cells.flip(1).cumsum(1).flip(1).cpu()
