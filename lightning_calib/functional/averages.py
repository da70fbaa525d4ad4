"""From scores of images to one figure: images that have no score are left out, and said so."""

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Average = Literal["image", "pool"]


def check_average(average: str) -> None:
    """Refuse an unknown way of averaging."""
    if average not in ("image", "pool"):
        raise ValueError(f"unknown average {average!r}; choose 'image' (mean over images) or 'pool' (all voxels)")


def mean_over_images(scores: Tensor, names: Sequence[str] | None = None) -> Tensor:
    """Mean of the scores ``(B,)`` that are not NaN; NaN, with a warning, where an image has none.

    Example:
        >>> mean_over_images(torch.tensor([0.25, 0.75]))
        tensor(0.5000)
    """
    missing = scores.isnan()
    if bool(missing.any()):
        places = missing.nonzero().flatten().tolist()
        shown = ", ".join(str(i) if not names or not names[i] else names[i] for i in places[:5])
        warnings.warn(
            f"{len(places)} of {len(scores)} images have no voxel (or class) that counts: their score is "
            f"NaN and left out of the mean. Images: {shown}{', ...' if len(places) > 5 else ''}",
            UserWarning,
            stacklevel=2,
        )
    return scores.nanmean() if len(scores) else torch.tensor(torch.nan, dtype=scores.dtype)
