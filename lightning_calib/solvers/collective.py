"""What the processes of a fit tell each other: sums and rows."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Collective(Protocol):
    """The processes that share the data of a fit."""

    @property
    def size(self) -> int:
        """How many there are."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum over processes of tensors of one shape."""

    def gather(self, rows: Tensor) -> Tensor:
        """Rows ``(n, K)`` of all processes below each other in order of their ranks; ``n`` may differ."""


class Alone:
    """The only process."""

    size = 1

    def sum(self, values: Tensor) -> Tensor:
        """The values."""
        return values

    def gather(self, rows: Tensor) -> Tensor:
        """The rows."""
        return rows


ALONE = Alone()


class TorchCollective:
    """The processes of ``torch.distributed``, once ``init_process_group`` was called.

    Args:
        group: the process group; all processes by default.
        device: where its backend wants tensors: the CPU for gloo, the process's GPU for nccl.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> None:
        self.group, self.device = group, torch.device(device)
        self.size = dist.get_world_size(group)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over processes."""
        total = values.to(self.device, copy=True)
        dist.all_reduce(total, group=self.group)
        return total.to(values.device)

    def gather(self, rows: Tensor) -> Tensor:
        """Rows in order of the ranks."""
        return gather_rows(rows.to(self.device), self._all_gather).to(rows.device)

    def _all_gather(self, values: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        return parts


def gather_rows(rows: Tensor, all_gather: Callable[[Tensor], list[Tensor]]) -> Tensor:
    """Rows ``(n, K)`` of all processes, of which each has an ``n`` of its own.

    Args:
        rows: those of this process.
        all_gather: gives the tensors of all processes, in order, where they have one shape.
    """
    counts = [int(count) for count in all_gather(torch.tensor([len(rows)], device=rows.device))]
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    return torch.cat([part[:count] for part, count in zip(all_gather(padded), counts, strict=True)])
