"""Convolutions of every other voxel: the padding and the fast way on CPUs."""

import torch
from torch import Tensor, nn

DILATION = 2


def reflection_index(size: int, padding: int, device: torch.device) -> Tensor:
    """Indices that pad an axis by reflection, as often as needed; an axis of size 1 is repeated.

    Example:
        >>> reflection_index(3, 4, torch.device("cpu")).tolist()
        [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]
    """
    last = size - 1
    position = torch.arange(-padding, size + padding, device=device)
    for _ in range(padding):  # both borders mirror until every position is inside; a fold takes off 2 or more
        position = last - (last - position.abs()).abs()
    return position.clamp(min=0)


def convolve_by_phases(field: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with dilation 2 as one without, on the four images of every other row and column.

    The same sums; on CPUs the gradient of the weights of a dilated convolution takes far longer than that of a plain
    one (``benchmarks/local.py``).

    Args:
        field: ``(N, C, H, W)``.
        weight: ``(K, C, h, w)``.
        bias: ``(K,)``.

    Returns:
        ``(N, K, H - 2 (h - 1), W - 2 (w - 1))``.
    """
    height, width = (
        size - DILATION * (kernel - 1) for size, kernel in zip(field.shape[2:], weight.shape[2:], strict=True)
    )
    even = nn.functional.pad(field, (0, field.shape[3] % 2, 0, field.shape[2] % 2))
    number, channels, rows, columns = even.shape
    split = even.view(number, channels, rows // 2, 2, columns // 2, 2)
    phases = split.permute(3, 5, 0, 1, 2, 4).flatten(0, 2)  # (4 N, C, H/2, W/2)
    found = nn.functional.conv2d(phases, weight, bias)
    maps = found.view(2, 2, number, *found.shape[1:])
    return maps.permute(2, 3, 4, 0, 5, 1).flatten(4, 5).flatten(2, 3)[:, :, :height, :width]
