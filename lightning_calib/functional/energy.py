"""Free energy of logits and how much it varies over an image."""

import torch
from torch import Tensor

from lightning_calib.functional.devices import sums_device
from lightning_calib.functional.voxels import as_images, chunks, count_kept, only, places


def free_energy(logits: Tensor) -> Tensor:
    r"""Free energy of every voxel: the offset that the softmax does not see.

    .. math:: F(z) = \log \sum_c e^{z_c}

    Args:
        logits: ``(B, C, *S)``.

    Returns:
        ``(B, *S)``, in float32 or wider.

    Example:
        >>> free_energy(torch.zeros(1, 4, 1).log_softmax(1) + 3)
        tensor([[3.]])
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(dim=1)


def free_energy_moments(logits: Tensor, target: Tensor | None = None, ignore_index: int | None = None) -> Tensor:
    """Count, mean and summed squared deviation of each image's free energy, in one chunked pass.

    Chunks are merged by the rule of Chan, Golub & LeVeque (1979), which is stable where the mean is large
    beside the spread.

    Args:
        logits: raw pooled logits ``(B, C, *S)``; ``(N, C)`` is one image of ``N`` voxels.
        target: labels ``(B, *S)``, needed where voxels are ignored.
        ignore_index: label of voxels that count nowhere.

    Returns:
        float64 ``(B, 3)`` on the CPU.

    Example:
        >>> free_energy_moments(torch.tensor([[0.0], [2.0]]))
        tensor([[2., 1., 2.]], dtype=torch.float64)
    """
    if target is None:
        target = torch.zeros(logits.shape[:1] + logits.shape[2:], dtype=torch.uint8, device=logits.device)
        ignore_index = None
    images, labels = as_images(logits, target)
    return torch.stack([_moments(*pair, ignore_index) for pair in zip(images, labels, strict=True)]).cpu()


def _moments(logits: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    """Moments ``(3,)`` of one image ``(C, N)``."""
    total = torch.zeros(3, dtype=torch.float64, device=sums_device(logits.device))
    parts = list(chunks(len(logits), logits.shape[1], logits.device))
    keep = None if ignore_index is None else target != ignore_index
    for part, count in zip(parts, count_kept(keep, parts, len(target)), strict=True):
        if count:
            energy = only(free_energy(logits[None, :, part])[0], places(keep, part, count)).to(total.device).double()
            mean = energy.mean()
            spread = (energy - mean).square().sum()
            total = _merge(total, torch.stack([torch.full_like(mean, count), mean, spread]))
    return total


def _merge(first: Tensor, second: Tensor) -> Tensor:
    (n, mean, spread), (m, other, more) = first, second
    shift = other - mean
    return torch.stack([n + m, mean + shift * m / (n + m), spread + more + shift**2 * n * m / (n + m)])


def spread_of(moments: Tensor) -> Tensor:
    """Standard deviation over voxels of each image ``(..., 3) -> (...)``; NaN without voxels.

    Example:
        >>> spread_of(torch.tensor([[2.0, 1.0, 2.0]]))
        tensor([1.])
    """
    return (moments[..., 2] / moments[..., 0]).sqrt()
