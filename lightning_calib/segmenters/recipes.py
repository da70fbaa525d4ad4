"""Recipes to train a network: optimiser, learning-rate schedule and gradient clipping as typed options."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


class Recipe(ABC):
    """How weights are found.

    Attributes:
        clip: largest norm of the gradient; None for no clipping.
    """

    clip: float | None = None

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Optimiser at its first learning rate."""

    @abstractmethod
    def factor(self, progress: float) -> float:
        """Learning rate after a share ``progress`` of the training, relative to the first."""

    def scheduler(self, optimizer: torch.optim.Optimizer, total_steps: int) -> LambdaLR:
        """Schedule over ``total_steps`` optimiser steps.

        By the step, not by the epoch: short runs have few epochs.
        """
        return LambdaLR(optimizer, lambda step: self.factor(min(step / max(total_steps, 1), 1.0)))


class NnUNetSGD(Recipe):
    """nnU-Net's recipe: SGD with Nesterov momentum, polynomial decay, clipped gradients.

    The learning rate is ``lr * (1 - progress) ** power`` (Isensee et al. 2021).

    Args:
        lr: first learning rate.
        momentum: Nesterov momentum.
        weight_decay: L2 penalty.
        power: exponent of the decay.
        clip: largest norm of the gradient.

    Example:
        >>> round(NnUNetSGD().factor(0.5), 4)
        0.5359
    """

    def __init__(
        self,
        lr: float = 1e-2,
        momentum: float = 0.99,
        weight_decay: float = 3e-5,
        power: float = 0.9,
        clip: float | None = 12.0,
    ) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.power, self.clip = power, clip

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """SGD (see :class:`Recipe`)."""
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=True
        )

    def factor(self, progress: float) -> float:
        """Polynomial decay to 0 (see :class:`Recipe`)."""
        return float((1 - progress) ** self.power)


class AdamWCosine(Recipe):
    """AdamW with a linear warm-up and cosine decay to 0.

    Args:
        lr: largest learning rate.
        weight_decay: decoupled weight decay.
        warmup: share of the training in which the rate rises from 0.
        clip: largest norm of the gradient; None for no clipping.

    Example:
        >>> recipe = AdamWCosine(warmup=0.0)
        >>> recipe.factor(0.0), round(recipe.factor(0.5), 4), recipe.factor(1.0)
        (1.0, 0.5, 0.0)
    """

    def __init__(
        self, lr: float = 1e-3, weight_decay: float = 1e-2, warmup: float = 0.05, clip: float | None = 1.0
    ) -> None:
        if not 0 <= warmup < 1:
            raise ValueError(f"warmup is a share of the training in [0, 1), got {warmup}")
        self.lr, self.weight_decay, self.warmup, self.clip = lr, weight_decay, warmup, clip

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW (see :class:`Recipe`)."""
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)

    def factor(self, progress: float) -> float:
        """Warm-up, then cosine (see :class:`Recipe`)."""
        if progress < self.warmup:
            return progress / self.warmup
        return (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup))) / 2
