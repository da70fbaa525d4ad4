"""The classes of each voxel in descending order: one sort, by the way that is fastest where it runs."""

from itertools import combinations

import torch
from torch import Tensor

# Classes up to which comparing every pair of them is faster on a CPU than sorting each voxel's few values.
PAIRED_CLASSES = 32


def descending_order(logits: Tensor) -> Tensor:
    """Classes ``(B, C, *S)`` of each voxel by falling finite logit, equal values in index order.

    A sort of few values at each of many voxels is slow on a CPU: there, the place of each class is found by
    comparing pairs. In an exported graph it is counted: no format promises a stable sort.

    Example:
        >>> descending_order(torch.tensor([[1.0, 5.0, 1.0]]))
        tensor([[1, 0, 2]])
    """
    if torch.compiler.is_compiling():
        return inverse_permutation(_counted_places(logits))
    if logits.device.type == "cpu" and logits.shape[1] <= PAIRED_CLASSES:
        return inverse_permutation(_paired_places(logits))
    return logits.argsort(dim=1, descending=True, stable=True)


def inverse_permutation(permutation: Tensor) -> Tensor:
    """Inverse of ``permutation (B, C, *S)`` along the class axis.

    Example:
        >>> inverse_permutation(torch.tensor([[1, 2, 0]]))
        tensor([[2, 0, 1]])
    """
    classes = class_indices(permutation).expand_as(permutation)
    return torch.empty_like(permutation).scatter_(1, permutation, classes)


def class_indices(values: Tensor) -> Tensor:
    """``0, ..., C - 1`` along the class axis of ``values (B, C, *S)``: ``(1, C, 1, ...)``.

    Example:
        >>> class_indices(torch.zeros(4, 3, 8)).shape
        torch.Size([1, 3, 1])
    """
    shape = [1, values.shape[1]] + [1] * (values.ndim - 2)
    return torch.arange(values.shape[1], device=values.device).view(shape)


def _paired_places(logits: Tensor) -> Tensor:
    """Place of each class in the descending order: its index, moved by one for every pair in the wrong order."""
    values = logits.detach().unbind(1)
    places = torch.stack([torch.full_like(row, number, dtype=torch.uint8) for number, row in enumerate(values)], 1)
    rows = places.unbind(1)  # views: what is added to them is added to the places
    for first, second in combinations(range(len(values)), 2):
        overtaken = (values[second] > values[first]).view(torch.uint8)
        rows[first].add_(overtaken)
        rows[second].sub_(overtaken)
    return places.long()


def _counted_places(logits: Tensor) -> Tensor:
    """Place of each class: the number of classes ahead of it, in few operations, each on all classes."""
    classes, place = class_indices(logits), torch.zeros_like(logits, dtype=torch.int64)
    for number in range(logits.shape[1]):
        rival = logits[:, number : number + 1]
        ahead = (rival > logits) | ((rival == logits) & (classes > number))
        place = place + ahead.to(torch.int64)
    return place
