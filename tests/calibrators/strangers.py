"""Calibrators as another package would bring them; they go through the same property tests as ours."""

import torch
from torch import nn

from lightning_calib.calibrators import Calibrator, Stack, build


class BiasOnly(Calibrator):
    """A bias for each class: ``S(z + b)``."""

    name = "bias_only"

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def calibrate(self, logits):
        return (logits + self.bias.unsqueeze(-1)).log_softmax(dim=1)


class Squeezed(Calibrator):
    """All logits times a number between a thousandth and a thousand."""

    name = "squeezed"
    preserves = "order"
    monotone = True

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.factor = nn.Parameter(torch.tensor(1.0))

    def calibrate(self, logits):
        return (logits * self.factor.clamp(1e-3, 1e3)).log_softmax(dim=1)


class OrderStack(Stack):
    """A stack of which all parts keep the order."""

    name = "order_stack"
    translation_invariant = True
    preserves = "order"

    def __init__(self, num_classes: int, spatial_dims: int = 2, parts=()) -> None:
        names = ("identity", "ts", "cms_op")
        super().__init__(num_classes, spatial_dims, parts or [build(name, num_classes, spatial_dims) for name in names])


class ArgmaxStack(Stack):
    """A stack of which one part keeps the argmax only."""

    name = "argmax_stack"
    translation_invariant = True
    preserves = "argmax"

    def __init__(self, num_classes: int, spatial_dims: int = 2, parts=()) -> None:
        names = ("identity", "cms_ap")
        super().__init__(num_classes, spatial_dims, parts or [build(name, num_classes, spatial_dims) for name in names])


STRANGERS = {cls.name: cls for cls in (BiasOnly, Squeezed, OrderStack, ArgmaxStack)}
