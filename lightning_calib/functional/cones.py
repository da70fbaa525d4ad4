r"""Cone coordinates, in which affine maps that keep the argmax or the class order are easy to write down.

A logit vector is first put into canonical order, so that it lies in a fixed cone: the argmax cone
``z_1 >= z_k`` (the winner swaps places with the first class) or the order cone ``z_1 >= z_2 >= ... >= z_C``
(sorted, equal values in index order). With ``x = G z`` the last ``C - 1`` coordinates are non-negative gaps:

- argmax: ``x = (z_1, z_1 - z_2, ..., z_1 - z_C)``
- order: ``x = (z_1, z_1 - z_2, z_2 - z_3, ..., z_{C-1} - z_C)``

An affine map ``W z + b`` keeps the cone if and only if ``W = G^{-1} W' G`` with

.. math:: W' = \begin{pmatrix} a & r^\top \\ 0 & A \end{pmatrix}, \quad A \ge 0,

and ``b`` in the cone ("Rethinking Post-Hoc Calibration in Semantic Segmentation", Section 3.2). The first row
``(a, r)`` and ``b_1`` move all classes together: softmax does not see them.
"""

from typing import Literal

import torch
from torch import Tensor

from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.ordering import (
    class_indices,
    descending_place,
    descending_places,
    descending_values,
    inverse_permutation,
)

Cone = Literal["argmax", "order"]


def canonical_permutation(logits: Tensor, cone: Cone) -> tuple[Tensor, Tensor]:
    """Permutation that brings each logit vector into its cone, and the one that brings it back.

    Args:
        logits: ``(B, C, *S)``.
        cone: ``"argmax"`` swaps the winner (the lowest index among equals) with class 0; ``"order"`` sorts in
            descending order, equal values in index order.

    Returns:
        ``perm (B, C, *S)`` such that ``logits.gather(1, perm)`` lies in the cone, and its inverse.

    Example:
        >>> canonical_permutation(torch.tensor([[1.0, 5.0, 3.0]]), "argmax")[0]
        tensor([[1, 0, 2]])
        >>> canonical_permutation(torch.tensor([[1.0, 5.0, 3.0]]), "order")
        (tensor([[1, 2, 0]]), tensor([[2, 0, 1]]))
    """
    if cone == "order":
        places = descending_places(logits)
        return inverse_permutation(places), places
    winner = winning_class(logits, keepdim=True)
    classes = class_indices(logits).expand_as(logits)
    swapped = torch.where(classes == winner, 0, classes)  # the winner's place takes class 0
    swap = torch.cat([winner, swapped[:, 1:]], dim=1)
    return swap, swap


def into_cone(logits: Tensor, winner: Tensor, cone: Cone) -> Tensor:
    """Canonical logits ``(B, C, *S)``, without the permutation that brings them there.

    Args:
        logits: ``(B, C, *S)``.
        winner: the class in front ``(B, *S)``.
        cone: which cone.

    Example:
        >>> logits, winner = torch.tensor([[1.0, 5.0, 3.0]]), torch.tensor([1])
        >>> into_cone(logits, winner, "argmax"), into_cone(logits, winner, "order")
        (tensor([[5., 1., 3.]]), tensor([[5., 3., 1.]]))
    """
    if cone == "order":
        return descending_values(logits)
    place = winner.unsqueeze(1)
    canonical = logits.scatter(1, place, logits[:, :1])
    canonical[:, :1] = logits.gather(1, place)
    return canonical


def place_in_cone(logits: Tensor, target: Tensor, winner: Tensor, cone: Cone) -> Tensor:
    """Where the classes ``target (B, *S)`` stand in the canonical order of logits ``(B, C, *S)``.

    Example:
        >>> logits, winner = torch.tensor([[1.0, 5.0, 3.0]]), torch.tensor([1])
        >>> [place_in_cone(logits, torch.tensor([0]), winner, cone).item() for cone in ("argmax", "order")]
        [1, 2]
    """
    if cone == "order":
        return descending_place(logits, target)
    return torch.where(target == winner, 0, torch.where(target == 0, winner, target))


def gaps(canonical: Tensor, cone: Cone) -> Tensor:
    """Non-negative coordinates of canonical logits: ``(B, C, *S)`` to ``(B, C - 1, *S)``.

    Example:
        >>> gaps(torch.tensor([[5.0, 3.0, 1.0]]), "argmax"), gaps(torch.tensor([[5.0, 3.0, 1.0]]), "order")
        (tensor([[2., 4.]]), tensor([[2., 2.]]))
    """
    above = canonical[:, :1] if cone == "argmax" else canonical[:, :-1]
    return above - canonical[:, 1:]


def scores_from_gaps(distances: Tensor, cone: Cone) -> Tensor:
    """Canonical scores with the first class at 0: ``(B, C - 1, *S)`` to ``(B, C, *S)``, undoing :func:`gaps`.

    Example:
        >>> scores_from_gaps(torch.tensor([[2.0, 2.0]]), "order")
        tensor([[ 0., -2., -4.]])
    """
    below = distances if cone == "argmax" else distances.cumsum(dim=1)
    return torch.cat([torch.zeros_like(below[:, :1]), -below], dim=1)


def cone_matrix(
    num_classes: int, cone: Cone, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Tensor:
    """The matrix ``G (C, C)`` of the cone coordinates ``x = G z``.

    Example:
        >>> cone_matrix(3, "order", torch.float32)
        tensor([[ 1.,  0.,  0.],
                [ 1., -1.,  0.],
                [ 0.,  1., -1.]])
    """
    matrix = torch.zeros(num_classes, num_classes, dtype=dtype, device=device).fill_diagonal_(-1)
    matrix[0, 0] = 1
    if cone == "argmax":
        matrix[1:, 0] = 1
    else:
        matrix.diagonal(-1).fill_(1)
    return matrix


def inverse_cone_matrix(
    num_classes: int, cone: Cone, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Tensor:
    """The exact inverse of :func:`cone_matrix`, with entries -1, 0 and 1.

    Example:
        >>> inverse_cone_matrix(3, "order", torch.float32)
        tensor([[ 1.,  0.,  0.],
                [ 1., -1.,  0.],
                [ 1., -1., -1.]])
    """
    if cone == "argmax":
        return cone_matrix(num_classes, cone, dtype, device)  # it is its own inverse
    matrix = torch.full((num_classes, num_classes), -1, dtype=dtype, device=device).tril()
    matrix[:, 0] = 1
    return matrix


def assemble_weight(inner: Tensor, first_row: Tensor, cone: Cone) -> Tensor:
    """``W = G^{-1} W' G`` of each expert.

    Args:
        inner: ``A (E, C - 1, C - 1)``.
        first_row: ``(a, r)`` of ``W'``, ``(E, C)``.
        cone: which cone ``A`` belongs to.

    Returns:
        ``W (E, C, C)``; it acts on canonical logits.

    Example:
        >>> assemble_weight(torch.eye(2)[None], torch.tensor([[1.0, 0.0, 0.0]]), "order")[0]
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """
    num_classes = first_row.shape[-1]
    to_gaps = cone_matrix(num_classes, cone, inner.dtype, inner.device)
    from_gaps = inverse_cone_matrix(num_classes, cone, inner.dtype, inner.device)
    below = torch.nn.functional.pad(inner, (1, 0))  # (E, C-1, C): a zero column in front
    conjugate = torch.cat([first_row.unsqueeze(-2), below], dim=-2)  # W' (E, C, C)
    return from_gaps @ conjugate @ to_gaps


def assemble_bias(bias_gaps: Tensor, bias_first: Tensor, cone: Cone) -> Tensor:
    """``b (E, C)`` from its gaps ``(E, C - 1)`` and its first entry ``(E,)``.

    Example:
        >>> assemble_bias(torch.tensor([[1.0, 1.0]]), torch.tensor([0.5]), "order")
        tensor([[ 0.5000, -0.5000, -1.5000]])
    """
    return bias_first.unsqueeze(-1) + scores_from_gaps(bias_gaps, cone)
