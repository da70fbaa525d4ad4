"""What a voxel counts in a fit: the same for all, or by its case."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_calib.solvers.stream import Chunk


@dataclass(frozen=True)
class CaseWeights:
    """Weights of voxels by their case; only their ratios matter.

    Args:
        by_case: the weight of each case. A number is shared out evenly among the voxels of the case that count, and
            the case must then come whole; a tensor ``(n,)`` holds a weight for each of its voxels, ignored ones
            included.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> from lightning_calib.solvers.stream import Walk
        >>> (chunk,) = Walk(build("ts", 2))(torch.zeros(1, 2, 4), torch.zeros(1, 4, dtype=torch.long), ["a"])
        >>> CaseWeights({"a": 2.0}).of(chunk)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    by_case: Mapping[str, float | Tensor]

    def __post_init__(self) -> None:
        """Refuse weights that make no mean."""
        for case_id, weight in self.by_case.items():
            low = torch.as_tensor(weight).min()
            if not 0 <= low < torch.inf:
                raise ValueError(f"the weight of case {case_id!r} is {low}; give finite numbers of at least 0")

    def of(self, chunk: Chunk) -> Tensor:
        """Weights ``(m,)`` of the voxels of a chunk, in their precision and on their device."""
        if chunk.case_id not in self.by_case:
            raise ValueError(f"case {chunk.case_id!r} has no weight; case_weights must name every case of the data")
        weight = self.by_case[chunk.case_id]
        if isinstance(weight, Tensor):
            return weight.to(chunk.features)[chunk.index]
        return chunk.features.new_tensor(weight / chunk.case_voxels).expand(chunk.index.shape)
