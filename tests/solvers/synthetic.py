"""Logits with labels that a known map gives them."""

import torch

from lightning_calib.calibrators import build


def draw(log_probs, seed):
    """Labels (B, *S) drawn from log-probabilities (B, C, *S)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(log_probs.shape, dtype=torch.float64).exponential_(generator=generator).log()
    return (log_probs.double() - noise).argmax(1)


def images(num_classes=4, count=3, size=32, seed=0, dtype=torch.float64, offsets=1.0):
    """Overconfident logits (B, C, H, W) with a shift of their own at every voxel."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, num_classes, size, size)
    logits = 1.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    winner = torch.randint(num_classes, (count, 1, size, size), generator=generator)
    logits.scatter_add_(1, winner, 3 + torch.randn(winner.shape, generator=generator, dtype=torch.float64))
    logits += offsets * torch.randn((count, 1, size, size), generator=generator, dtype=torch.float64)
    return logits.to(dtype)


def confused(num_classes=4, count=3, size=32, seed=0, dtype=torch.float64, offsets=1.0):
    """Images and labels that mix classes up and are less certain than the logits say."""
    logits = images(num_classes, count, size, seed, torch.float64, offsets)
    generator = torch.Generator().manual_seed(seed + 1)
    mixing = torch.eye(num_classes, dtype=torch.float64) * 0.6
    mixing += 0.2 * torch.randn(num_classes, num_classes, generator=generator, dtype=torch.float64)
    log_probs = torch.einsum("ij,bjhw->bihw", mixing, logits - logits.amax(1, keepdim=True)).log_softmax(1)
    return logits.to(dtype), draw(log_probs, seed + 2)


def fresh(name, num_classes=4, dtype=torch.float64):
    """A calibrator at the identity."""
    return build(name, num_classes).to(dtype)
