"""Sums over all voxels at one point: loss and gradient of each expert, taken in float64."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_calib.functional.voxels import sums_device
from lightning_calib.solvers.stream import Chunk

Reduce = Callable[[Tensor], Tensor]


def residuals(matrices: list[Tensor], chunk: Chunk, runs: list[tuple[int, slice]]) -> tuple[Tensor, Tensor]:
    """``-log q_y (m,)`` and ``q - onehot(y) (C, m)`` of the experts' voxels, run behind run.

    Args:
        matrices: ``[W | b] (C, C + 1)`` of the expert of each run.
        chunk: the voxels.
        runs: which experts take part.
    """
    # One array of one size: pieces of changing sizes would leave gaps in the heap that grow with the data.
    scores = chunk.features.new_empty(matrices[0].shape[0], sum(part.stop - part.start for _, part in runs))
    start = 0
    for matrix, (_, part) in zip(matrices, runs, strict=True):
        stop = start + part.stop - part.start
        torch.addmm(matrix[:, -1:], matrix[:, :-1], chunk.features[:, part], out=scores[:, start:stop])
        start = stop
    log_probs = torch.log_softmax(scores, dim=0)
    whole = len(runs) == len(chunk.experts)
    position = chunk.position if whole else torch.cat([chunk.position[part] for _, part in runs])
    loss = -log_probs.gather(0, position.unsqueeze(0)).squeeze(0)
    residual = log_probs.exp_()
    residual.scatter_add_(0, position.unsqueeze(0), residual.new_full((1, len(position)), -1))
    return loss, residual


class PassSums:
    """Loss ``(E,)`` and gradient in ``[W | b] (E, C, C + 1)``, summed over voxels.

    Args:
        matrices: ``[W | b] (E, C, C + 1)`` of the point.
        active: experts that take part ``(E,)``; the voxels of others are passed over.
    """

    def __init__(self, matrices: Tensor, active: Tensor) -> None:
        self.matrices = matrices
        self.active: set[int] = set(active.nonzero().flatten().tolist())
        self.loss = torch.zeros(matrices.shape[0], dtype=torch.float64)
        self.gradient = torch.zeros_like(matrices)
        self._local: dict[torch.dtype, Tensor] = {}

    def add(self, chunk: Chunk) -> None:
        """Add the voxels of a chunk."""
        runs = [run for run in chunk.experts if run[0] in self.active]
        if not runs:
            return
        matrices = self._matrices(chunk.features)
        loss, residual = residuals([matrices[expert] for expert, _ in runs], chunk, runs)
        self._move(sums_device(loss.device))
        start = 0
        for expert, part in runs:
            stop = start + part.stop - part.start
            self.loss[expert] += loss[start:stop].sum(dtype=torch.float64).to(self.loss.device)
            own = residual[:, start:stop]
            self.gradient[expert, :, :-1] += (own @ chunk.features[:, part].T).to(self.gradient)
            self.gradient[expert, :, -1] += own.sum(1).to(self.gradient)
            start = stop

    def reduce(self, reduce: Reduce) -> tuple[Tensor, Tensor]:
        """Loss and gradient over all processes, on the CPU."""
        flat = reduce(torch.cat([self.loss, self.gradient.flatten()]))
        loss, gradient = torch.split(flat.cpu(), [self.loss.numel(), self.gradient.numel()])
        return loss, gradient.view(self.gradient.shape)

    def _matrices(self, features: Tensor) -> Tensor:
        """The point in the precision and on the device of the features."""
        if features.dtype not in self._local:
            self._local[features.dtype] = self.matrices.to(features)
        return self._local[features.dtype]

    def _move(self, device: torch.device) -> None:
        """Keep the sums where they are added to."""
        if self.loss.device != device:
            self.loss, self.gradient = self.loss.to(device), self.gradient.to(device)
