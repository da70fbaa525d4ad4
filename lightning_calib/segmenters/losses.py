r"""Losses for segmentation networks, each with an ``ignore_index``."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

LossName = Literal["dice_ce", "dice_balanced_ce", "ce", "balanced_ce", "dice", "focal"]
Loss = Callable[[Tensor, Tensor, int | None, int | None], Tensor]

_SMOOTH = 1e-5  # nnU-Net's: keeps absent classes at a Dice of 1


def cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int | None = None, background: int | None = None
) -> Tensor:
    r"""Mean of :math:`-\log q_y` over the voxels that count.

    Args:
        logits: scores ``(B, C, *S)``.
        target: labels ``(B, *S)``.
        ignore_index: label of voxels that do not count; without any that do, the loss is 0.
        background: not used; the losses share one signature.

    Example:
        >>> cross_entropy(torch.zeros(1, 2, 3), torch.tensor([[0, 1, 9]]), ignore_index=9)
        tensor(0.6931)
    """
    return _masked_mean(_voxel_nll(logits, target, ignore_index), target, ignore_index)


def balanced_cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int | None = None, background: int | None = None
) -> Tensor:
    r"""Cross-entropy in which a class counts by the square root of its share of the batch.

    .. math:: \frac{\sum_c \sqrt{n_c}\, \ell_c}{\sum_c \sqrt{n_c}}

    with :math:`n_c` the voxels of class ``c`` in the batch and :math:`\ell_c` the mean of :math:`-\log q_c` over them:
    between plain cross-entropy (weights ``n_c``) and equal weights for all classes. Networks find rare classes
    sooner, and overrate them. Arguments as :func:`cross_entropy`.

    Example:
        >>> logits = torch.tensor([[[2.0, 2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]]])
        >>> balanced_cross_entropy(logits, torch.tensor([[0, 0, 0, 0, 1]]))
        tensor(0.7936)
    """
    nll, classes = _voxel_nll(logits, target, ignore_index), logits.shape[1]
    labels = target if ignore_index is None else target.where(target != ignore_index, classes)
    slots = nll.new_zeros(classes + 1)  # the last one takes what does not count
    sums = slots.index_add(0, labels.flatten(), nll.flatten())[:classes]
    counts = slots.index_add(0, labels.flatten(), torch.ones_like(nll).flatten())[:classes]
    roots = counts.sqrt()
    return (sums / roots.clamp(min=1)).sum() / roots.sum().clamp(min=1)


def focal(
    logits: Tensor,
    target: Tensor,
    ignore_index: int | None = None,
    background: int | None = None,
    gamma: float = 2.0,
) -> Tensor:
    r"""Mean of :math:`-(1 - q_y)^\gamma \log q_y` (Lin et al. 2017); arguments as :func:`cross_entropy`.

    Example:
        >>> focal(torch.zeros(1, 2, 1), torch.tensor([[0]]))
        tensor(0.1733)
    """
    nll = _voxel_nll(logits, target, ignore_index)
    return _masked_mean((1 - torch.exp(-nll)) ** gamma * nll, target, ignore_index)


def dice(logits: Tensor, target: Tensor, ignore_index: int | None = None, background: int | None = None) -> Tensor:
    r"""One minus the soft Dice over the batch, averaged over classes.

    .. math::
        1 - \frac1{|K|} \sum_{c \in K} \frac{2 \sum_v q_c(v) y_c(v) + s}{\sum_v q_c(v) + \sum_v y_c(v) + s}

    with ``q`` the softmax, ``y`` the one-hot target, ``v`` the voxels of the batch that count, ``s`` = 1e-5
    and ``K`` the classes but the background.

    Args:
        logits: scores ``(B, C, *S)``.
        target: labels ``(B, *S)``.
        ignore_index: label of voxels that do not count.
        background: class to leave out of the mean; None for none.

    Example:
        >>> dice(torch.tensor([[[100.0, 0.0], [0.0, 100.0]]]), torch.tensor([[0, 1]])).abs() < 1e-6
        tensor(True)
    """
    probs = logits.float().softmax(dim=1).flatten(2)  # (B, C, V)
    labels = target.flatten(1)  # (B, V)
    counted = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
    onehot = F.one_hot(labels.where(counted, 0), probs.shape[1]).transpose(1, 2) * counted[:, None]
    overlap = (probs * onehot).sum(dim=(0, 2))  # (C,)
    total = (probs * counted[:, None]).sum(dim=(0, 2)) + onehot.sum(dim=(0, 2))
    scores = (2 * overlap + _SMOOTH) / (total + _SMOOTH)
    classes = [c for c in range(probs.shape[1]) if c != background]
    return 1 - scores[classes].mean()


def dice_ce(logits: Tensor, target: Tensor, ignore_index: int | None = None, background: int | None = None) -> Tensor:
    """nnU-Net's loss: soft Dice plus cross-entropy, equal parts; arguments as :func:`dice`."""
    return dice(logits, target, ignore_index, background) + cross_entropy(logits, target, ignore_index)


def dice_balanced_ce(
    logits: Tensor, target: Tensor, ignore_index: int | None = None, background: int | None = None
) -> Tensor:
    """Soft Dice plus :func:`balanced_cross_entropy`: for many classes, some of them rare; arguments as :func:`dice`."""
    return dice(logits, target, ignore_index, background) + balanced_cross_entropy(logits, target, ignore_index)


LOSSES: dict[LossName, Loss] = {
    "dice_ce": dice_ce,
    "dice_balanced_ce": dice_balanced_ce,
    "ce": cross_entropy,
    "balanced_ce": balanced_cross_entropy,
    "dice": dice,
    "focal": focal,
}


def get_loss(name: LossName) -> Loss:
    """Loss by its name; a wrong one lists the right ones."""
    if name not in LOSSES:
        raise ValueError(f"unknown loss {name!r}; choose one of {', '.join(get_args(LossName))}")
    return LOSSES[name]


def deep_supervision_weights(count: int) -> list[float]:
    """nnU-Net's weights of ``count`` resolutions: halved at each step, none for the lowest, sum 1.

    Example:
        >>> deep_supervision_weights(3)
        [0.6666666666666666, 0.3333333333333333, 0.0]
        >>> deep_supervision_weights(1)
        [1.0]
    """
    weights = [2.0**-level for level in range(count)]
    if count > 1:
        weights[-1] = 0.0
    return [weight / sum(weights) for weight in weights]


def deep_supervision_loss(
    loss: Loss,
    outputs: Sequence[Tensor],
    target: Tensor,
    ignore_index: int | None = None,
    background: int | None = None,
) -> Tensor:
    """Weighted sum of a loss over resolutions; the target is brought to each by its nearest voxel.

    Args:
        loss: one of :data:`LOSSES`.
        outputs: logits of falling resolution, the first ``(B, C, *S)``.
        target: labels ``(B, *S)``.
        ignore_index: label of voxels that do not count.
        background: class that :func:`dice` leaves out.
    """
    total = outputs[0].new_zeros(())
    for weight, logits in zip(deep_supervision_weights(len(outputs)), outputs, strict=True):
        labels = _resize(target, logits.shape[2:])
        total = total + weight * loss(logits, labels, ignore_index, background)
    return total


def _resize(target: Tensor, shape: torch.Size) -> Tensor:
    if target.shape[1:] == shape:
        return target
    # Labels fit into float32 exactly up to 2^24.
    return F.interpolate(target[:, None].float(), size=shape, mode="nearest-exact")[:, 0].long()


def _voxel_nll(logits: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    skip = -100 if ignore_index is None else ignore_index
    return F.cross_entropy(logits.float(), target, ignore_index=skip, reduction="none")


def _masked_mean(values: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    count = target.numel() if ignore_index is None else (target != ignore_index).sum().clamp(min=1)
    return values.sum() / count
