"""Scores of whole images: in one piece or by a sliding window, averaged over mirrored views."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import torch
from torch import Tensor

from lightning_calib.segmenters.extras import require

Predictor = Callable[[Tensor], Tensor]


@dataclass
class Inference:
    """How a network is applied to whole images.

    Images smaller than the window are mirrored out to it, as training mirrors volumes out to its patches:
    normalisation layers see the same kind of surroundings in both.

    Args:
        window: size of the sliding window, one number a spatial axis; None for the image in one piece.
        overlap: share by which neighbouring windows overlap.
        window_batch: windows per forward pass.
        mirror_axes: spatial axes (0 is the first) over whose mirrored views logits are averaged, in all
            combinations as nnU-Net does; empty for none.
    """

    window: list[int] | None = None
    overlap: float = 0.5
    window_batch: int = 1
    mirror_axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        self.mirror_axes = tuple(self.mirror_axes or ())  # JSON knows lists
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap is in [0, 1), got {self.overlap}")
        if self.window is not None and min(self.window) < 1:
            raise ValueError(f"window {self.window}: sizes are positive")

    def __call__(self, predictor: Predictor, images: Tensor) -> Tensor:
        """Logits ``(B, C, *S)`` of images ``(B, channels, *S)``.

        Args:
            predictor: gives the logits of images or windows.
            images: normalised images.

        Example:
            >>> conv = torch.nn.Conv2d(1, 2, 3, padding=1)
            >>> Inference(mirror_axes=(0, 1))(conv, torch.zeros(1, 1, 8, 8)).shape
            torch.Size([1, 2, 8, 8])
        """
        views = list(_subsets(self.mirror_axes))
        total: Tensor | None = None
        for view in views:
            axes = [axis + 2 for axis in view]
            logits = self._scan(predictor, images.flip(axes) if axes else images)
            logits = logits.flip(axes) if axes else logits
            total = logits if total is None else total.add_(logits)
        assert total is not None
        return total.div_(len(views)) if len(views) > 1 else total

    def _scan(self, predictor: Predictor, images: Tensor) -> Tensor:
        if self.window is None:
            return predictor(images).float()
        inferers = require("monai.inferers", "sliding windows")
        inside, padded = mirror_out(images, self.window)
        scores: Tensor = inferers.sliding_window_inference(
            padded,
            roi_size=self.window,
            sw_batch_size=self.window_batch,
            predictor=lambda windows: predictor(windows).float(),
            overlap=self.overlap,
            mode="gaussian",
            sw_device=images.device,
            device=torch.device("cpu"),  # whole volumes of scores stay off the accelerator
        )
        return scores[inside]


def mirror_out(images: Tensor, size: Sequence[int]) -> tuple[tuple[slice, ...], Tensor]:
    """Images ``(B, channels, *S)`` mirrored out to at least ``size``, half of what lacks on each side.

    The border itself is repeated, and small images as often as it takes, as ``numpy.pad`` does with ``symmetric``.

    Returns:
        Where the images are, one slice an axis, and the larger images.

    Example:
        >>> mirror_out(torch.tensor([[[1, 2, 3]]]), [8])[1]
        tensor([[[2, 1, 1, 2, 3, 3, 2, 1]]])
    """
    inside = [slice(None), slice(None)]
    for axis, want in enumerate(size, start=2):
        have = images.shape[axis]
        before = max(want - have, 0) // 2
        place = torch.arange(-before, max(want, have) - before, device=images.device) % (2 * have)
        images = images.index_select(axis, torch.minimum(place, 2 * have - 1 - place))
        inside.append(slice(before, before + have))
    return tuple(inside), images


def _subsets(axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(sorted(set(axes)), size) for size in range(len(set(axes)) + 1))
