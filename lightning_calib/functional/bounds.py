"""Bounds on parameters that a gradient can leave again."""

import torch
from torch import Tensor


def within(values: Tensor, low: float | Tensor | None = None, high: float | Tensor | None = None) -> Tensor:
    """Cut values off at bounds; at a bound itself the gradient passes.

    ``torch.clamp`` passes the gradient at the bound or not, depending on the release (2.15 does not): a parameter
    that an optimiser has projected onto its bound would be stuck there.

    Example:
        >>> values = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
        >>> within(values, low=0.0).sum().backward()
        >>> values.grad
        tensor([0., 1., 1.])
    """
    if low is not None:
        values = torch.where(values < low, low, values)
    if high is not None:
        values = torch.where(values > high, high, values)
    return values
