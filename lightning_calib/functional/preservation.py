"""Last-ulp repair of log-probabilities that must keep the argmax or the class order of their logits.

On paper a preserving calibrator never changes a decision. In floating point, rounding merges neighbours one ulp
apart, zero weights tie the winner with another class (and argmax takes the lower index), and sums of
exponentials can swap nearly equal entries. These functions look at every voxel and touch only the broken ones.
"""

import torch
from torch import Tensor

from lightning_calib.functional.cones import Cone
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.ordering import descending_order


def _may_skip(broken: Tensor) -> bool:
    """Whether nothing is broken: unknown in an exported graph; on a device the repair is cheaper than the answer."""
    return broken.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(broken.any())


def next_above(values: Tensor) -> Tensor:
    """The next float above normal values, by products and sums alone: ONNX has no ``nextafter``.

    A summand between half an ulp and one ulp is rounded to one (Rump, Zimmermann, Boldo & Melquiond 2009). Only
    within a factor of ``2 / eps`` of the smallest normal number it fails; a log-probability that is not the only
    largest one is below ``log(1/2)``.

    Example:
        >>> value = torch.tensor([-0.7])
        >>> next_above(value) == torch.nextafter(value, torch.tensor(0.0))
        tensor([True])
    """
    epsilon = torch.finfo(values.dtype).eps
    return values + values.abs() * (epsilon / 2 * (1 + epsilon))


def restore_argmax(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Make the argmax (lowest index among equals) of ``log_probs`` that of ``logits``.

    Where they differ, the logits' winner gets the next float above the maximum. Arguments as in :func:`preserve`.

    Example:
        >>> restore_argmax(torch.tensor([[-0.7, -0.7]]), torch.tensor([[1.0, 2.0]])).argmax(1)
        tensor([1])
    """
    winner = winning_class(logits, keepdim=True)
    broken = winning_class(log_probs, keepdim=True) != winner
    if _may_skip(broken):
        return log_probs
    top = log_probs.amax(dim=1, keepdim=True)
    above = next_above(top) if torch.compiler.is_compiling() else torch.nextafter(top, torch.full_like(top, torch.inf))
    return log_probs.scatter(1, winner, torch.where(broken, above, log_probs.gather(1, winner)))


def restore_order(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Make the class order of ``log_probs`` that of ``logits``: no pair inverted, the same argmax.

    The values of a broken voxel are handed out anew, the largest to the largest logit (equal logits in index order):
    they still sum to 1. A running minimum would not do: two logits an ulp apart may be equal after a shift and change
    ranks, and where ranks have biases their values differ by much more than rounding. Arguments as in
    :func:`preserve`.

    Example:
        >>> restore_order(torch.tensor([[-1.0, -3.0, -2.5]]), torch.tensor([[3.0, 2.0, 1.0]]))
        tensor([[-1.0000, -2.5000, -3.0000]])
    """
    order = descending_order(logits)
    ranked = log_probs.gather(1, order)
    broken = ranked[:, 1:] > ranked[:, :-1]
    if not _may_skip(broken):
        log_probs = log_probs.scatter(1, order, ranked.sort(dim=1, descending=True).values)
    return restore_argmax(log_probs, logits)


class _Repair(torch.autograd.Function):
    """Repaired values forward, the untouched gradient backward."""

    @staticmethod
    def forward(ctx: object, log_probs: Tensor, repaired: Tensor) -> Tensor:
        return repaired.clone()

    @staticmethod
    def backward(ctx: object, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


def preserve(log_probs: Tensor, logits: Tensor, cone: Cone) -> Tensor:
    """Repair ``log_probs`` outside the autograd graph; see :func:`restore_argmax` and :func:`restore_order`.

    Args:
        log_probs: ``(B, C, *S)``, float32 or float64.
        logits: what they were calibrated from, ``(B, C, *S)``.
        cone: what must be kept.

    Example:
        >>> preserve(torch.tensor([[-0.7, -0.7]]), torch.tensor([[1.0, 2.0]]), "order").argmax(1)
        tensor([1])
    """
    restore = restore_order if cone == "order" else restore_argmax
    if not log_probs.requires_grad:
        return restore(log_probs, logits.detach() if logits.requires_grad else logits)
    values = log_probs.detach()
    fixed = restore(values, logits.detach())
    return log_probs if fixed is values else _Repair.apply(log_probs, fixed)
