"""The classes of each voxel in descending order: one sort, by the way that is fastest where it runs."""

from functools import cache

import torch
from torch import Tensor

from lightning_calib.functional.shared import once

# Classes up to which comparing every pair of them is faster on a CPU than sorting each voxel's few values.
PAIRED_CLASSES = 32


@once
def descending_order(logits: Tensor) -> Tensor:
    """Classes ``(B, C, *S)`` of each voxel by falling finite logit, equal values in index order.

    Example:
        >>> descending_order(torch.tensor([[1.0, 5.0, 1.0]]))
        tensor([[1, 0, 2]])
    """
    return inverse_permutation(descending_places(logits))


@once
def descending_places(logits: Tensor) -> Tensor:
    """Place of each class ``(B, C, *S)`` in :func:`descending_order`.

    A sort of few values at each of many voxels is slow on a CPU: there, places are found by comparing pairs. In an
    exported graph they are counted: no format promises a stable sort.

    Example:
        >>> descending_places(torch.tensor([[1.0, 5.0, 3.0]]))
        tensor([[2, 0, 1]])
    """
    if torch.compiler.is_compiling():
        return _counted_places(logits)
    if logits.device.type == "cpu" and logits.shape[1] <= PAIRED_CLASSES:
        return _paired_places(logits)
    return inverse_permutation(logits.argsort(dim=1, descending=True, stable=True))


def descending_values(logits: Tensor) -> Tensor:
    """Values ``(B, C, *S)`` of each voxel in falling order; no permutation, and a fifth of its time on a CPU.

    Example:
        >>> descending_values(torch.tensor([[1.0, 5.0, 3.0]]))
        tensor([[5., 3., 1.]])
    """
    if logits.device.type != "cpu":
        return logits.sort(dim=1, descending=True).values
    rows, spare = list(logits.clone().unbind(1)), torch.empty_like(logits[:, 0])
    for high, low in comparisons(logits.shape[1]):
        torch.maximum(rows[high], rows[low], out=spare)
        torch.minimum(rows[high], rows[low], out=rows[low])
        rows[high], spare = spare, rows[high]
    return torch.stack(rows, dim=1)


@cache
def comparisons(count: int) -> tuple[tuple[int, int], ...]:
    """Pairs of places that sort any values, if each pair in turn is put in order (Batcher's odd-even merge, 1968).

    Example:
        >>> comparisons(4)
        ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2))
    """
    pairs, block = [], 1
    while block < count:
        step = block
        while step:
            starts = range(step % block, count - step, 2 * step)
            firsts = (start + k for start in starts for k in range(min(step, count - start - step)))
            pairs += [(k, k + step) for k in firsts if k // (2 * block) == (k + step) // (2 * block)]
            step //= 2
        block *= 2
    return tuple(pairs)


def descending_place(logits: Tensor, target: Tensor) -> Tensor:
    """Place ``(B, *S)`` of the classes ``target (B, *S)`` by falling logit, equal values in index order.

    Example:
        >>> descending_place(torch.tensor([[1.0, 5.0, 1.0]]), torch.tensor([2]))
        tensor([2])
    """
    target = target.unsqueeze(1)
    own = logits.gather(1, target)
    before = (logits == own) & (class_indices(logits) < target)
    return ((logits > own) | before).sum(1)


@once
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
    values = logits.detach()
    places = class_indices(values).to(torch.uint8).expand(values.shape).contiguous()
    for first in range(values.shape[1] - 1):
        overtaken = (values[:, first + 1 :] > values[:, first : first + 1]).view(torch.uint8)
        places[:, first].add_(overtaken.sum(1, dtype=torch.uint8))
        places[:, first + 1 :].sub_(overtaken)
    return places.long()


def _counted_places(logits: Tensor) -> Tensor:
    """Place of each class: the number of classes ahead of it, in few operations, each on all classes."""
    classes, place = class_indices(logits), torch.zeros_like(logits, dtype=torch.int64)
    for number in range(logits.shape[1]):
        rival = logits[:, number : number + 1]
        ahead = (rival > logits) | ((rival == logits) & (classes > number))
        place = place + ahead.to(torch.int64)
    return place
