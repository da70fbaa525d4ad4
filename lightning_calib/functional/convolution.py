"""Convolutions of every other voxel: the padding and the fast way on CPUs."""

import math

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


def reflected(field: Tensor, padding: int) -> Tensor:
    """An image ``(N, C, H, W)`` padded by reflection on all sides, however small it is.

    Example:
        >>> reflected(torch.tensor([[[[1.0, 2.0]]]]), 1)[0, 0, 0]
        tensor([2., 1., 2., 1.])
    """
    if not torch.compiler.is_compiling() and min(field.shape[2:]) > padding:
        return nn.functional.pad(field, (padding,) * 4, mode="reflect")
    for axis in (2, 3):
        field = field.index_select(axis, reflection_index(field.shape[axis], padding, field.device))
    return field


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


def convolve_last(field: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with dilation 2; on CPUs with classes last in memory, which is faster, their order included.

    Arguments and result as in :func:`convolve_by_phases`.
    """
    if field.device.type == "cpu" and not torch.compiler.is_compiling():
        field = field.contiguous(memory_format=torch.channels_last)
    return nn.functional.conv2d(field, weight, bias, dilation=DILATION).contiguous()


def neighbour_places(index: Tensor, shape: tuple[int, ...], axes: tuple[int, ...], kernel: int) -> Tensor:
    """Where a convolution with dilation 2 and reflection padding looks, as places in the flat image.

    Args:
        index: voxels ``(k,)`` in the flat image.
        shape: of the image.
        axes: the two axes of the convolution, in order.
        kernel: voxels a side, odd.

    Returns:
        ``(k, kernel²)``, in the order of the kernel's weights.

    Example:
        >>> neighbour_places(torch.tensor([0]), (1, 4), (0, 1), 3)
        tensor([[2, 0, 2, 2, 0, 2, 2, 0, 2]])
    """
    padding, found = DILATION * (kernel // 2), index.unsqueeze(1)
    for axis in axes:
        stride = math.prod(shape[axis + 1 :])
        own = index // stride % shape[axis]  # (k,)
        taps = torch.arange(0, 2 * padding + 1, DILATION, device=index.device)
        seen = reflection_index(shape[axis], padding, index.device)[own.unsqueeze(1) + taps]  # (k, kernel)
        moved = (seen - own.unsqueeze(1)) * stride
        found = (found.unsqueeze(2) + moved.unsqueeze(1)).flatten(1)
    return found
