"""Seconds of a training step of smp networks on the CPU, by memory layout and precision.

python benchmarks/training_step.py [--encoders '[resnet18, mobilenet_v2]'] [--size '[256, 256]']
"""

from collections.abc import Callable

import torch
from _measure import markdown, side_by_side
from jsonargparse import auto_cli

from lightning_calib.segmenters import SmpNetwork, get_loss

DECODER = [64, 32, 32, 16, 8]
VARIANTS = {
    "float32": (False, False),
    "float32, channels last": (True, False),
    "bf16-mixed": (False, True),
    "bf16-mixed, channels last": (True, True),
}


def step_of(encoder: str, size: tuple[int, int], batch: int, channels_last: bool, mixed: bool) -> Callable[[], None]:
    """A step of AdamW on one batch of noise, with its first one taken."""
    torch.manual_seed(0)
    options = SmpNetwork("unet", encoder, options={"decoder_channels": DECODER}, channels_last=channels_last)
    network = options.build(in_channels=3, num_classes=4, spatial_dims=2).train()
    optimizer = torch.optim.AdamW(network.parameters())
    images, target = torch.randn(batch, 3, *size), torch.randint(0, 4, (batch, *size))
    loss = get_loss("dice_ce")

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits, _ = network(images)
        optimizer.zero_grad()
        torch.autograd.backward(loss(logits, target, None, None))
        optimizer.step()

    step()
    return step


def main(
    encoders: list[str] = ["resnet18", "mobilenet_v2"],  # noqa: B006  # jsonargparse shows it
    size: tuple[int, int] = (256, 256),
    batch: int = 4,
    threads: int = 1,
    rounds: int = 3,
) -> None:
    """Print the table.

    Args:
        encoders: encoders of the U-Net.
        size: height and width of the crops.
        batch: crops a step.
        threads: processor cores to use.
        rounds: steps of each; the best counts.
    """
    torch.set_num_threads(threads)
    rows = []
    for encoder in encoders:
        steps = {name: step_of(encoder, size, batch, *variant) for name, variant in VARIANTS.items()}
        measured = side_by_side(steps, rounds)
        rows.append([encoder, *(f"{measured[name].seconds:.2f}" for name in VARIANTS)])
    print(f"seconds a step of {batch} crops of {size[0]} x {size[1]}, {threads} thread(s)\n")
    print(markdown(["encoder", *VARIANTS], rows))


if __name__ == "__main__":
    auto_cli(main)
