"""Overlap of predicted and true classes."""

import torch
from torch import Tensor


def class_counts(confusion: Tensor) -> Tensor:
    """Voxels of each class that agree, that are predicted, that are labelled ``(..., C, 3)``.

    Args:
        confusion: int64 voxels of each true and predicted class ``(..., C, C)``.

    Example:
        >>> class_counts(torch.tensor([[5, 1], [0, 2]]))
        tensor([[5, 5, 6],
                [2, 3, 2]])
    """
    agree = confusion.diagonal(dim1=-2, dim2=-1)
    return torch.stack([agree, confusion.sum(dim=-2), confusion.sum(dim=-1)], dim=-1)


def dice(counts: Tensor, include_background: bool = True, background: int = 0) -> Tensor:
    r"""Dice score, averaged over the classes that occur.

    .. math:: \frac{1}{|P|} \sum_{c \in P} \frac{2\,\mathrm{TP}_c}{2\,\mathrm{TP}_c + \mathrm{FP}_c + \mathrm{FN}_c}

    with ``P`` the classes present in target or prediction. A class that is in neither says nothing about the
    segmentation and is left out; no class left gives NaN.

    Args:
        counts: ``(..., C, 3)`` from :func:`class_counts`.
        include_background: whether the background is one of the classes.
        background: which class it is.

    Returns:
        float64 ``(...)``.

    Example:
        >>> dice(torch.tensor([[5, 5, 6], [2, 3, 2]]), include_background=False)
        tensor(0.8000, dtype=torch.float64)
    """
    agree, predicted, labelled = _foreground(counts, include_background, background).double().unbind(dim=-1)
    return (2 * agree / (predicted + labelled)).nanmean(dim=-1)


def mean_iou(counts: Tensor, include_background: bool = True, background: int = 0) -> Tensor:
    r"""Intersection over union, averaged over the classes that occur.

    .. math:: \frac{1}{|P|} \sum_{c \in P} \frac{\mathrm{TP}_c}{\mathrm{TP}_c + \mathrm{FP}_c + \mathrm{FN}_c}

    with ``P`` and all arguments as in :func:`dice`.

    Example:
        >>> mean_iou(torch.tensor([[5, 5, 6], [2, 3, 2]]), include_background=False)
        tensor(0.6667, dtype=torch.float64)
    """
    return class_iou(_foreground(counts, include_background, background)).nanmean(dim=-1)


def class_iou(counts: Tensor) -> Tensor:
    """Intersection over union of each class; NaN for one that is neither in the target nor predicted.

    From the counts ``(..., C, 3)`` of :func:`class_counts` to float64 ``(..., C)``.

    Example:
        >>> class_iou(torch.tensor([[4, 5, 4], [2, 3, 2], [0, 0, 0]])).tolist()
        [0.8, 0.6666666666666666, nan]
    """
    agree, predicted, labelled = counts.double().unbind(dim=-1)
    return agree / (predicted + labelled - agree)


def _foreground(counts: Tensor, include_background: bool, background: int) -> Tensor:
    """Counts of the classes that a score averages over."""
    num_classes = counts.shape[-2]
    if include_background:
        return counts
    if not 0 <= background < num_classes:
        raise ValueError(f"background {background} is not one of the {num_classes} classes")
    return counts[..., torch.arange(num_classes) != background, :]
