"""Affine maps chosen per voxel, for all experts and voxels at once."""

import torch
from torch import Tensor

from lightning_calib.functional.shared import once

# Voxels of one expert that share a matrix product. Larger blocks pad more, smaller ones copy more matrices.
BLOCK = 64


def winning_class(logits: Tensor, keepdim: bool = False) -> Tensor:
    """Class with the highest logit, the lowest index among equals: ``(B, C, *S)`` to ``(B, *S)``.

    Example:
        >>> winning_class(torch.tensor([[1.0, 2.0, 2.0]]))
        tensor([1])
    """
    return top_class(logits, keepdim)[1]


@once
def top_class(scores: Tensor, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Maximum over the class axis of ``(B, C, *S)`` and its class, the lowest among equals.

    The same as ``scores.max(dim=1)`` for scores without NaN, at a third of the time on a CPU: the search for the
    maximum and the search for its place are both vectorised there, which ``max`` over a strided axis is not.

    Example:
        >>> top_class(torch.tensor([[[1.0, 0.0], [1.0, 2.0]]]))
        (tensor([[1., 2.]]), tensor([[0, 1]]))
    """
    if scores.device.type != "cpu" or torch.compiler.is_compiling():
        top, place = scores.max(dim=1, keepdim=keepdim)
        return top, place
    num_classes = scores.shape[1]
    small = torch.uint8 if num_classes < 256 else torch.int32
    rank = torch.arange(num_classes, 0, -1, dtype=small).view(-1, *[1] * (scores.ndim - 2))
    top = scores.amax(dim=1, keepdim=True)
    found = (scores == top).view(torch.uint8).to(small).mul_(rank).amax(dim=1, keepdim=keepdim)
    place = num_classes - found.clamp_(min=1).long()  # NaN equals nothing
    return (top if keepdim else top.squeeze(1)), place


def apply_experts(weight: Tensor, bias: Tensor, features: Tensor, expert: Tensor) -> Tensor:
    r"""Affine map of the expert that each voxel has chosen: ``y_v = W_{e(v)} x_v + b_{e(v)}``.

    Voxels are sorted by expert and cut into blocks of one expert each, the last one of an expert padded with
    zeros; one batched product serves them all. The number of blocks depends on shapes only.

    Args:
        weight: ``W (E, R, C)``.
        bias: ``b (E, R)``.
        features: ``x (B, C, n)``.
        expert: ``e (B, n)``, integers in ``[0, E)``.

    Returns:
        ``y (B, R, n)``.

    Example:
        >>> weight, bias = torch.tensor([[[1.0]], [[10.0]]]), torch.zeros(2, 1)
        >>> apply_experts(weight, bias, torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[0, 1, 0]]))
        tensor([[[ 1., 20.,  3.]]])
    """
    if torch.compiler.is_compiling():
        return apply_every_expert(weight, bias, features, expert)
    num_experts, num_rows, num_features = weight.shape
    batch, _, length = features.shape
    voxels = batch * length
    chosen, order = expert.reshape(voxels).sort(stable=True)  # both (N,)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=expert.device)
    counts = counts.scatter_add(0, chosen, torch.ones_like(chosen))
    blocks = (counts + BLOCK - 1) // BLOCK
    last_block = blocks.cumsum(0)
    # Place of each sorted voxel in the padded layout: its expert's first block, then its rank in the expert.
    rank = torch.arange(voxels, device=expert.device) - (counts.cumsum(0) - counts)[chosen]
    place = torch.empty_like(order).scatter_(0, order, (last_block - blocks)[chosen] * BLOCK + rank)  # of each voxel

    num_blocks = voxels // BLOCK + num_experts  # never fewer than needed
    owner = (torch.arange(num_blocks, device=expert.device)[:, None] >= last_block[None]).sum(1)
    owner = owner.clamp(max=num_experts - 1)  # surplus blocks hold zeros and are never read
    rows = features.transpose(1, 2).reshape(voxels, num_features)
    padded = rows.new_zeros(num_blocks * BLOCK, num_features).index_copy(0, place, rows)
    padded = padded.view(num_blocks, BLOCK, num_features)
    mapped = torch.baddbmm(bias[owner].unsqueeze(1), padded, weight[owner].transpose(1, 2))

    return mapped.reshape(-1, num_rows)[place].view(batch, length, num_rows).transpose(1, 2)


def apply_every_expert(weight: Tensor, bias: Tensor, features: Tensor, expert: Tensor) -> Tensor:
    """The map of :func:`apply_experts` without sorting: each expert maps all voxels, each voxel keeps its own.

    ``E`` times the arithmetic, in operations that every exported graph has: products and a choice.

    Example:
        >>> weight, bias = torch.tensor([[[1.0]], [[10.0]]]), torch.zeros(2, 1)
        >>> apply_every_expert(weight, bias, torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[0, 1, 0]]))
        tensor([[[ 1., 20.,  3.]]])
    """
    result = weight[0] @ features + bias[0].unsqueeze(-1)
    for number in range(1, len(weight)):
        mapped = weight[number] @ features + bias[number].unsqueeze(-1)
        result = torch.where((expert == number).unsqueeze(1), mapped, result)
    return result
