"""Sums over all voxels at one point: loss and gradient of each expert, taken in float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_calib.calibrators import Calibrator, LinearCalibrator
from lightning_calib.functional.devices import sums_device
from lightning_calib.solvers.base import Batch
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.coordinates import Coordinates, coordinates_of
from lightning_calib.solvers.objective import PooledNLL
from lightning_calib.solvers.stream import Chunk, Walk
from lightning_calib.solvers.weights import CaseWeights


def residuals(
    coordinates: Coordinates, matrices: Tensor, chunk: Chunk, runs: list[tuple[int, slice]]
) -> tuple[Tensor, Tensor]:
    """``-log q_y (m,)`` and ``q - onehot(y) (C, m)`` of the experts' voxels, run behind run.

    Args:
        coordinates: of the calibrator.
        matrices: ``[W | b] (E, C, C + 1)``, or what else scores are linear in.
        chunk: the voxels.
        runs: which experts take part.
    """
    # One array of one size: pieces of changing sizes would leave gaps in the heap that grow with the data.
    scores = chunk.features.new_empty(coordinates.num_classes, sum(part.stop - part.start for _, part in runs))
    start = 0
    for expert, part in runs:
        stop = start + part.stop - part.start
        coordinates.scores(matrices[expert], chunk.features[:, part], out=scores[:, start:stop])
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
        coordinates: of the calibrator.
        theta: coordinates ``(E, P)`` of the point.
        active: experts that take part, all by default; the voxels of others are passed over.
        weights: what voxels count; 1 by default.
    """

    def __init__(
        self,
        coordinates: Coordinates,
        theta: Tensor,
        active: list[bool] | None = None,
        weights: CaseWeights | None = None,
    ) -> None:
        self.coordinates, self.matrices, self.weights = coordinates, coordinates.affine(theta), weights
        taking_part = [True] * len(theta) if active is None else active
        self.active = {number for number, takes_part in enumerate(taking_part) if takes_part}
        self.loss = torch.zeros(len(theta), dtype=torch.float64)
        self.gradient = torch.zeros_like(self.matrices)
        self._local: dict[torch.dtype, Tensor] = {}

    def add(self, chunk: Chunk) -> None:
        """Add the voxels of a chunk."""
        runs = [run for run in chunk.experts if run[0] in self.active]
        if not runs:
            return
        loss, residual = residuals(self.coordinates, self._matrices(chunk.features), chunk, runs)
        if self.weights is not None:
            weight = self.weights.of(chunk)
            weight = torch.cat([weight[part] for _, part in runs])
            loss, residual = loss * weight, residual.mul_(weight)
        self._move(sums_device(loss.device))
        start = 0
        for expert, part in runs:
            stop = start + part.stop - part.start
            self.loss[expert] += loss[start:stop].to(self.loss.device).sum(dtype=torch.float64)
            slope = self.coordinates.slope(residual[:, start:stop], chunk.features[:, part])
            self.gradient[expert] += slope.to(self.gradient)
            start = stop

    def total(self, collective: Collective) -> tuple[Tensor, Tensor]:
        """Loss and gradient over all processes, on the CPU."""
        flat = collective.sum(torch.cat([self.loss, self.gradient.flatten()]))
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


class LinearNLL:
    """Mean NLL over all voxels by the sums that newton takes, on voxels that may be prepared already.

    Equal to the mean over ``calibrator(logits)`` up to rounding, without the repair of preservation, which moves
    nothing by more than the last digit.

    Args:
        calibrator: one that newton fits.
        walk: how to prepare voxels.
    """

    @torch.no_grad()
    def __init__(self, calibrator: LinearCalibrator, walk: Walk) -> None:
        coordinates = coordinates_of(calibrator)
        self.walk, self.voxels = walk, 0
        self.sums = PassSums(coordinates, coordinates.read())

    @torch.no_grad()
    def add(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        features: Tensor | None = None,
    ) -> None:
        """Take a batch; without case ids, one image or list of voxels."""
        for chunk in self.walk(logits, target, ["0"] if case_ids is None else case_ids, features):
            self.sums.add(chunk)
            self.voxels += chunk.target.numel()

    def mean(self, collective: Collective = ALONE) -> tuple[float, int]:
        """The mean over all processes, and the number of voxels."""
        count = torch.tensor([self.voxels], dtype=torch.float64)
        loss = collective.sum(torch.cat([self.sums.loss.cpu(), count]))
        voxels = int(loss[-1])
        return float(loss[:-1].sum()) / voxels, voxels


def pooled_nll(calibrator: Calibrator, ignore_index: int | None, walk: Walk | None) -> PooledNLL | LinearNLL:
    """Empty sums for the NLL of a calibrator; where voxels are prepared, on those."""
    if walk is not None and isinstance(calibrator, LinearCalibrator):
        return LinearNLL(calibrator, walk)
    return PooledNLL(calibrator, ignore_index)


@torch.no_grad()
def voxel_losses(calibrator: LinearCalibrator, walk: Walk, batch: Batch) -> Tensor:
    """``-log q_y`` of each voxel of one case ``(n,)``, float32, on voxels that may be prepared already; 0 if ignored.

    Args:
        calibrator: one that newton fits.
        walk: how to prepare voxels.
        batch: logits ``(1, C, *S)``, target ``(1, *S)``, the case's id and perhaps features.
    """
    logits, target, case_ids = batch[:3]
    features = batch[3] if len(batch) > 3 else None
    coordinates = coordinates_of(calibrator)
    matrices = coordinates.affine(coordinates.read())
    found = torch.zeros(target.numel(), device=logits.device)
    for chunk in walk(logits, target, ["0"] if case_ids is None else case_ids, features):
        loss, _ = residuals(coordinates, matrices.to(chunk.features), chunk, list(chunk.experts))
        found[chunk.index] = loss.float()
    return found
