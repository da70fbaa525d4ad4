"""Seconds and anonymous memory of every calibrator's forward pass on one image.

    python benchmarks/calibrators.py [--classes 20] [--height 1024] [--width 2048]

The bar: at C = 20 on 1024 x 2048, memory above the input stays below 12 times the input's own size.
"""

from functools import partial

import torch
from _measure import markdown, side_by_side
from jsonargparse import auto_cli

from lightning_calib.calibrators import CALIBRATORS, Calibrator, build

BAR = 12.0


def perturbed(name: str, num_classes: int) -> Calibrator:
    """A calibrator away from its start, as a fit would leave it."""
    calibrator = build(name, num_classes)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return calibrator.requires_grad_(False)


def calibrated_shape(calibrator: Calibrator, logits: torch.Tensor) -> torch.Size:
    """Calibrate, and keep nothing of it."""
    return calibrator(logits).shape


def main(classes: int = 20, height: int = 1024, width: int = 2048, rounds: int = 3) -> None:
    """Measure all calibrators in turns.

    Args:
        classes: number of classes.
        height: rows of the image.
        width: columns of the image.
        rounds: runs of each; the best time and the largest peak count.
    """
    logits = 5 * torch.randn(1, classes, height, width, generator=torch.Generator().manual_seed(1))
    size = logits.numel() * logits.element_size() / 2**20
    calibrators = [perturbed(name, classes) for name in CALIBRATORS]
    measured = side_by_side({c.name: partial(calibrated_shape, c, logits) for c in calibrators}, rounds)
    reference = measured["identity"].seconds
    rows = [
        [name, f"{m.seconds:.2f}", f"{m.seconds / reference:.1f}", f"{m.mebibytes:.0f}", f"{m.mebibytes / size:.1f}"]
        for name, m in measured.items()
    ]
    print(f"one image of {height} x {width}, C = {classes}: {size:.0f} MiB in float32\n")
    print(markdown(["calibrator", "seconds", "times identity", "MiB above the input", "times the input"], rows))
    worst = max(m.mebibytes / size for m in measured.values())
    print(f"\nlargest: {worst:.1f} times the input; bar {BAR:.0f}: {'met' if worst < BAR else 'MISSED'}")


if __name__ == "__main__":
    auto_cli(main)
