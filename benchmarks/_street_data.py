"""Made-up street scenes: regions with rare classes, logits that are certain inside them and confused at their edges."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot


def street_image(
    seed: int, num_classes: int = 20, size: tuple[int, int] = (128, 256), rarity: float = 1.5
) -> tuple[Tensor, Tensor]:
    """Logits ``(C, H, W)`` and labels ``(H, W)``; classes become rarer with their number, some are absent.

    Args:
        seed: of the image; the classes' confusions are the same for all.
        num_classes: ``C``.
        size: height and width.
        rarity: how fast.
    """
    generator, world = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(2**31)

    def smooth(channels: int, cells: int) -> Tensor:
        coarse = torch.randn(1, channels, max(2, size[0] // cells), max(2, size[1] // cells), generator=generator)
        return interpolate(coarse, size=size, mode="bilinear", align_corners=False)[0]

    prior = rarity * torch.arange(1, num_classes + 1).log()
    present = torch.rand(num_classes, generator=generator) < torch.linspace(1.0, 0.4, num_classes)
    layout = 2.5 * smooth(num_classes, 32) + 0.7 * smooth(num_classes, 8)
    layout -= (prior + 30 * ~present)[:, None, None]
    target = layout.argmax(0)
    # What a network sees: the layout, blurred, with confusions of its own and noise; far too sure of itself.
    mixing = torch.eye(num_classes) + 0.25 * torch.randn(num_classes, num_classes, generator=world) / num_classes**0.5
    signal = torch.einsum("ij,jhw->ihw", mixing, 7 * one_hot(target, num_classes).permute(2, 0, 1).float())
    small = (max(2, size[0] // 4), max(2, size[1] // 4))
    signal = interpolate(interpolate(signal[None], size=small, mode="area"), size=size, mode="bilinear")[0]
    noise = 2.2 * smooth(num_classes, 16) + 1.2 * smooth(num_classes, 4)
    logits = 1.6 * (signal + noise - 0.5 * prior[:, None, None])
    return logits.contiguous(), target


def street(
    count: int, num_classes: int = 20, size: tuple[int, int] = (128, 256), first: int = 0
) -> list[tuple[Tensor, Tensor, list[str]]]:
    """Batches of one image, numbered from ``first``."""
    images = ((number, street_image(number, num_classes, size)) for number in range(first, first + count))
    return [(logits[None], target[None], [f"street{number}"]) for number, (logits, target) in images]
