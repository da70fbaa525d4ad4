"""Seconds and memory of a training step of local temperature scaling, by phases and with a dilated convolution.

python benchmarks/local.py [--classes 11] [--height 240] [--width 320]
"""

from unittest.mock import patch

import torch
from _measure import markdown, side_by_side
from jsonargparse import auto_cli
from torch.nn import functional as F

from lightning_calib.calibrators import build, local


def dilated(field: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The convolution as its definition has it."""
    return F.conv2d(field, weight, bias, dilation=local.DILATION)


def main(classes: int = 11, height: int = 240, width: int = 320, steps: int = 10, rounds: int = 3) -> None:
    """Measure both in turns.

    Args:
        classes: number of classes.
        height: rows of the image.
        width: columns of the image.
        steps: forward and backward passes of a round.
        rounds: runs of each; the best counts.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(1, classes, height, width, generator=generator)
    target = torch.randint(0, classes, (1, height, width), generator=generator)
    calibrator = build("lts_ti", classes)

    def train() -> None:
        for _ in range(steps):
            F.nll_loss(calibrator(logits), target).backward()

    def train_dilated() -> None:
        with patch.object(local, "convolve_by_phases", dilated):
            train()

    measured = side_by_side({"by phases": train, "dilated": train_dilated}, rounds)
    rows = [[name, f"{m.seconds / steps:.3f}", f"{m.mebibytes:.0f}"] for name, m in measured.items()]
    print(f"one image of {height} x {width}, C = {classes}, one thread\n")
    print(markdown(["convolution", "seconds a step", "MiB"], rows))
    print(f"\nratio {measured['dilated'].seconds / measured['by phases'].seconds:.1f}")


if __name__ == "__main__":
    auto_cli(main)
