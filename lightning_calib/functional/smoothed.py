"""Agreement of smoothed uncertainty and smoothed error maps (SPACE)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv1d

from lightning_calib.functional.averages import mean_over_images
from lightning_calib.functional.devices import sums_device
from lightning_calib.functional.voxels import as_images, only, places, walk


def space_error(log_probs: Tensor, target: Tensor, sigma: float = 2.0, ignore_index: int | None = None) -> Tensor:
    """Mean over images of :func:`space_errors`.

    Example:
        >>> log_probs = torch.tensor([0.75, 0.25]).log().view(1, 2, 1).expand(1, 2, 4)
        >>> round(space_error(log_probs, torch.zeros(1, 4, dtype=torch.int64)).item(), 4)
        0.25
    """
    return mean_over_images(space_errors(log_probs, target, sigma, ignore_index))


def space_errors(log_probs: Tensor, target: Tensor, sigma: float = 2.0, ignore_index: int | None = None) -> Tensor:
    r"""Local disagreement of uncertainty and error of each image (Zeevi et al. 2025).

    .. math:: \frac1N \sum_v \bigl\lvert (G_\sigma * U)(v) - (G_\sigma * E)(v) \bigr\rvert

    with ``U = 1 - max_c q_c``, ``E`` the error of the prediction and ``G`` a Gaussian of ``sigma`` voxels. The
    Gaussian is normalised over the voxels that count: neither the image's border nor ignored voxels leak in.

    Args:
        log_probs: ``(B, C, *S)`` with at least one spatial axis.
        target: ``(B, *S)``.
        sigma: width of the Gaussian in voxels; it is cut off at four times that.
        ignore_index: label of voxels that count nowhere.

    Returns:
        float64 ``(B,)`` on the CPU; NaN where no voxel counts.

    Example:
        >>> log_probs = torch.tensor([0.75, 0.25]).log().view(1, 2, 1).expand(1, 2, 4)
        >>> [round(x, 4) for x in space_errors(log_probs, torch.zeros(1, 4, dtype=torch.int64)).tolist()]
        [0.25]
    """
    if sigma <= 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    if log_probs.ndim < 3:
        raise ValueError(f"a smoothed error needs spatial axes (B, C, *S), got {tuple(log_probs.shape)}")
    images, labels = as_images(log_probs, target)
    scores = [
        _image_error(image, own, target.shape[1:], sigma, ignore_index, f"image {i} of the batch")
        for i, (image, own) in enumerate(zip(images, labels, strict=True))
    ]
    return torch.stack(scores).cpu()


def _image_error(
    image: Tensor, labels: Tensor, shape: torch.Size, sigma: float, ignore_index: int | None, place: str
) -> Tensor:
    keep = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
    gap, count = torch.zeros(labels.shape, dtype=torch.float32, device=labels.device), 0
    for voxels in walk(image, labels, keep, place):
        own = (1 - voxels.confidence - (voxels.prediction != voxels.target).double()).float().to(gap.device)
        count += len(own)
        if voxels.keep is None:
            gap[voxels.part] = own
        else:
            gap[voxels.part].index_copy_(0, voxels.keep, own)
    smooth = gaussian(gap.view(shape), sigma) / gaussian(keep.view(shape).float(), sigma)
    counted = only(smooth.flatten(), places(keep, slice(None), count))
    return counted.abs().to(sums_device(counted.device)).double().mean()


def gaussian(values: Tensor, sigma: float) -> Tensor:
    """Gaussian filter of a map ``(*S)``, zero outside, cut off at four sigma.

    Example:
        >>> gaussian(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), sigma=0.25)
        tensor([0.0000e+00, 3.3524e-04, 9.9933e-01, 3.3524e-04, 0.0000e+00])
    """
    radius = math.ceil(4 * sigma)
    offsets = torch.arange(-radius, radius + 1, dtype=values.dtype, device=values.device)
    kernel = torch.softmax(-0.5 * (offsets / sigma) ** 2, dim=0)[None, None]
    with torch.autocast(values.device.type, enabled=False):
        for axis in range(values.ndim):
            lines = values.movedim(axis, -1)
            flat = lines.reshape(-1, 1, lines.shape[-1])  # (all other axes, 1, length)
            values = conv1d(flat, kernel, padding=radius).view(lines.shape).movedim(-1, axis)
    return values
