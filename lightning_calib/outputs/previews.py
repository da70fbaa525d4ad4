"""Small 8-bit pictures of the images behind a store, for people to look at beside its maps.

``previews/<case_id>.png`` beside the manifest: grey or RGB, the whole of an image or, of a volume, the plane along the
first axis with most foreground, whose number stands in the file (text ``plane``). Nothing is computed from them: they
have no hash, and stores without them are whole.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin
from torch import Tensor

from lightning_calib.kit.files import atomic_path

PREVIEWS = "previews"
IGNORED = -1
MAX_SIDE = 1024  # pixels of the longer side; larger images are thinned out
_TAILS = 0.005  # share of voxels that may be clipped at either end of the scale


@dataclass(frozen=True)
class Preview:
    """Pixels ``(H, W, 3)`` of an image, thinned out where it is large; ``plane`` of a volume."""

    pixels: NDArray[np.uint8]
    plane: int | None


def busiest_plane(counted_foreground: Tensor) -> int:
    """Index along the first axis of the plane with most foreground.

    Example:
        >>> import torch
        >>> busiest_plane(torch.tensor([[[0, 0]], [[1, 1]], [[1, 0]]], dtype=torch.bool))
        1
    """
    return int(counted_foreground.flatten(1).sum(dim=1).argmax())


def foreground(target: Tensor, background: int | None) -> Tensor:
    """Voxels of interest: not ``IGNORED`` and not background, which by default is the most common label."""
    counted = target != IGNORED
    if background is None:
        present = target[counted]
        background = int(present.mode().values) if present.numel() else -1
    return counted & (target != background)


def preview_path(root: Path, case_id: str) -> Path:
    """Where the picture of a case lies."""
    return root / PREVIEWS / f"{case_id}.png"


def write_preview(
    root: Path, case_id: str, image: Tensor | None, target: Tensor, background: int | None, ignore_index: int | None
) -> None:
    """Write the picture of a case; without an image on the grid of the target, an earlier one is taken away.

    Args:
        root: folder of the store.
        case_id: the case.
        image: ``(channels, *S)``, any range; the first three channels are colours where there are three.
        target: labels ``(*S)``.
        background: the background class.
        ignore_index: label of voxels that count nowhere.
    """
    path = preview_path(root, case_id)
    if image is None or image.shape[1:] != target.shape:
        path.unlink(missing_ok=True)
        return
    facts = PngImagePlugin.PngInfo()
    if target.ndim == 3:
        labels = target if ignore_index is None else target.masked_fill(target == ignore_index, IGNORED)
        plane = busiest_plane(foreground(labels, background))
        image = image[:, plane]
        facts.add_text("plane", str(plane))
    step = math.ceil(max(image.shape[1:]) / MAX_SIDE)
    pixels = eight_bit(image[:, step // 2 :: step, step // 2 :: step])
    path.parent.mkdir(exist_ok=True)
    with atomic_path(path) as aside:
        Image.fromarray(pixels).save(aside, "PNG", pnginfo=facts)


def eight_bit(image: Tensor) -> NDArray[np.uint8]:
    """Pixels ``(H, W, 3)``, or ``(H, W)`` of one channel, from ``(channels, H, W)`` of any range.

    Each channel is stretched between its darkest and brightest values, a few of them clipped.

    Example:
        >>> import torch
        >>> eight_bit(torch.tensor([[[-1.0, 0.0, 1.0]]])).tolist()
        [[0, 127, 255]]
    """
    channels = (image[:3] if len(image) >= 3 else image[:1]).detach().float().cpu().nan_to_num().numpy()
    low, high = np.quantile(channels, [_TAILS, 1 - _TAILS], axis=(1, 2), keepdims=True, method="nearest")
    scaled = ((channels - low) / np.maximum(high - low, 1e-6)).clip(0, 1)
    pixels: NDArray[np.uint8] = (255 * scaled).astype(np.uint8).transpose(1, 2, 0)
    return pixels if len(channels) == 3 else pixels[..., 0]


def read_preview(root: Path, case_id: str) -> Preview | None:
    """The picture of a case; None where the store has none that can be read."""
    path = preview_path(root, case_id)
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            if max(picture.size) > MAX_SIDE:
                return None
            plane = picture.info.get("plane")
            return Preview(np.asarray(picture.convert("RGB")), None if plane is None else int(plane))
    except (OSError, ValueError, SyntaxError):  # Pillow's words for a file that is no picture
        return None
