"""Pooling of ensemble members' logits into one map."""

from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_calib.functional.devices import chunk_values
from lightning_calib.functional.voxels import CHUNK_VALUES

# Voxels that one instruction may take at once, and a multiple of that.
VECTOR = 64

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
    wide = torch.promote_types(logits.dtype, torch.float32)
    if pooling == "p0":
        return logits[:, 0].to(wide)
    if pooling == "z":
        return logits.to(wide).mean(dim=1)
    if torch.compiler.is_compiling() or logits.requires_grad:
        return _mean_probability(logits.to(wide))
    parts = torch.split(logits.flatten(3), _chunk_voxels(logits), dim=-1) if logits.ndim > 3 else [logits]
    pooled = [_mean_probability(part.to(wide)) for part in parts]
    return torch.cat(pooled, dim=-1).view(logits.shape[0], *logits.shape[2:])


def _mean_probability(logits: Tensor) -> Tensor:
    """Log of the mean probability of members ``(B, M, C, ...)``."""
    count = torch.tensor(logits.shape[1], dtype=logits.dtype)
    return logits.log_softmax(dim=2).logsumexp(dim=1) - count.log()


def _chunk_voxels(logits: Tensor) -> int:
    """Voxels whose scores stay in the cache; whole vectors of the processor, so that no bit depends on the chunks."""
    values = chunk_values(logits.device, on_cpu=CHUNK_VALUES) // max(1, logits.shape[:3].numel())
    return max(VECTOR, values // VECTOR * VECTOR)
