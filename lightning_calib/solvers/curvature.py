"""Second derivatives of the NLL, summed over voxels: pure functions."""

import torch
from torch import Tensor

# Voxels in a product for the Hessian: float32 sums stay short, temporaries small.
HESSIAN_BLOCK = 2048


def matrix_hessian(probs: Tensor, design: Tensor, weight: Tensor) -> Tensor:
    r"""``sum_v w (diag(q) - q q^T) \otimes x x^T``, ``(C, D, C, D)`` in float64.

    Products run in the precision of ``q``; what they leave in directions that softmax cannot see is then taken out.

    Args:
        probs: ``q (C, k)``.
        design: ``x (D, k)``.
        weight: ``(k,)``.
    """
    num_classes, depth = probs.shape[0], design.shape[0]
    total = torch.zeros(num_classes, depth, num_classes, depth, dtype=torch.float64)
    own = total.diagonal(dim1=0, dim2=2)  # (D, D, C), a view
    size = num_classes * depth
    mixed, stride = torch.zeros(size, size, dtype=torch.float64), max(64, -(-size // 6))
    blocks = [torch.split(value.to(probs.dtype), HESSIAN_BLOCK, dim=-1) for value in (probs, design, weight)]
    for q, x, w in zip(*blocks, strict=True):
        outer = (q.unsqueeze(1) * x).flatten(0, 1)  # (C D, k)
        weighted = outer * w
        for part in range(0, len(outer), stride):  # the product is symmetric: one triangle of blocks is enough
            mixed[part : part + stride, part:] += weighted[part : part + stride] @ outer[part:].T
        own += (weighted @ x.T).view(num_classes, depth, depth).permute(1, 2, 0)
    total -= (mixed.triu() + mixed.triu(1).T).view(total.shape)
    total -= total.mean(0, keepdim=True)
    total -= total.mean(2, keepdim=True)
    return total


def diagonal_hessian(probs: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    """The part of :func:`matrix_hessian` that scales ``a`` and biases ``b`` see, ``(2C, 2C)``."""
    outer = torch.cat([probs * features, probs])  # (2C, k)
    total = -(outer * weight) @ outer.T
    second, first, zeroth = ((probs * features.pow(power)) @ weight for power in (2, 1, 0))
    mixed = first.diag()
    return total + torch.cat([torch.cat([second.diag(), mixed], 1), torch.cat([mixed, zeroth.diag()], 1)])


def basis_hessian(probs: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    r"""``sum_v w Cov_q(\Phi)``, ``(J, J)``: exact, and never indefinite.

    Args:
        probs: ``q (C, k)``.
        values: ``\Phi (J, C, k)``.
        weight: ``(k,)``.

    Example:
        >>> probs, values = torch.full((4, 1), 0.25), torch.tensor([[[0.0], [0.0], [2.0], [2.0]]])
        >>> basis_hessian(probs, values, torch.ones(1))
        tensor([[1.]])
    """
    centred = values - (probs * values).sum(1, keepdim=True)
    scaled = (centred * (probs * weight).sqrt()).flatten(1)  # (J, C k)
    return scaled @ scaled.T
