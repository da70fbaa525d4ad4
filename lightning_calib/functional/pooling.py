"""Pooling of ensemble members' logits into one map."""

from typing import Literal, get_args

import torch
from torch import Tensor

Pooling = Literal["z", "p", "p0"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def pool(logits: Tensor, pooling: Pooling) -> Tensor:
    r"""Pool the members of an ensemble.

    .. math::
        z: \frac1M \sum_m z_m \qquad
        p: \log \frac1M \sum_m S(z_m) \qquad
        p0: z_0

    with ``z_m`` the logits of member ``m`` and ``S`` the softmax over classes. The log of the mean
    probability is taken without leaving log space, so that no tail is clipped:
    ``logsumexp_m(log_softmax(z_m)) - log M``. ``p0`` is the single-model baseline: the raw logits of the
    first member.

    Args:
        logits: member logits ``(B, M, C, *S)``, floating point.
        pooling: ``"z"``, ``"p"`` or ``"p0"``.

    Returns:
        Pooled logits ``(B, C, *S)`` in float32, or wider where the input is wider.

    Example:
        >>> members = torch.tensor([[[0.0, 2.0], [0.0, 4.0]]])  # B=1, M=2, C=2
        >>> pool(members, "z")
        tensor([[0., 3.]])
        >>> round(pool(members, "p").exp().sum().item(), 4)
        1.0
    """
    if pooling not in POOLINGS:
        raise ValueError(f"unknown pooling {pooling!r}; choose one of {', '.join(POOLINGS)}")
    if logits.ndim < 3:
        raise ValueError(f"member logits need the axes (B, M, C, *S), got the shape {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise ValueError(f"member logits must be floating point, got {logits.dtype}")
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if pooling == "p0":
        return wide[:, 0]
    if pooling == "z":
        return wide.mean(dim=1)
    return wide.log_softmax(dim=2).logsumexp(dim=1) - torch.tensor(wide.shape[1], dtype=wide.dtype).log()
