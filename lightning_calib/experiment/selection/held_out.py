"""What cross-fitting hands on: the table of held-out NLL by group, and samples of voxels for stacking."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_calib.calibrators import PipelineName
from lightning_calib.experiment.selection.crossfit import CrossFitted, Losses
from lightning_calib.experiment.selection.folds import FoldedVoxels
from lightning_calib.experiment.selection.ladder import HeldOut, HeldOutPath
from lightning_calib.experiment.statistics import Floats
from lightning_calib.functional.pooling import Pooling


@dataclass(frozen=True)
class HeldOutSample:
    """Log-probabilities of the labels of sampled voxels, by fits that had not seen their groups; for stacking.

    Attributes:
        pipelines: the candidates of one pooling, in the order of the ladder.
        strengths: of the ridge of each.
        log_q: ``log q_y (K, n)``, float32.
        weights: what each voxel counts ``(n,)``, in all 1: mean over groups, then cases, then voxels.
        group: number of each voxel's group ``(n,)``.
    """

    pipelines: tuple[str, ...]
    strengths: tuple[float, ...]
    log_q: NDArray[np.float32]
    weights: Floats
    group: NDArray[np.int64]


def held_out_table(voxels: FoldedVoxels, fitted: list[CrossFitted]) -> HeldOut:
    """Mean NLL of each group, from the losses of its voxels."""
    group, weight, count = voxels.group.numpy(), _weights(voxels), len(voxels.groups)

    def means(losses: Losses) -> Floats:
        return np.stack([np.bincount(group, weight * row, count) for row in losses.astype(np.float64)])

    paths = [HeldOutPath(found.pipeline, found.strengths, means(found.losses)) for found in fitted]
    return HeldOut(voxels.groups, len(voxels.folds), tuple(paths))


def held_out_sample(
    voxels: FoldedVoxels, fitted: list[CrossFitted], strengths: Mapping[str, float], pooling: Pooling
) -> HeldOutSample:
    """Candidates of one pooling, each at its strength.

    Args:
        voxels: the sample.
        fitted: the candidates.
        strengths: by pipeline; 0 where it is not named.
        pooling: which of them to take.
    """
    own = [found for found in fitted if PipelineName.parse(found.pipeline).pooling == pooling]
    chosen = tuple(strengths.get(found.pipeline, 0.0) for found in own)
    rows = [found.losses[found.strengths.index(strength)] for found, strength in zip(own, chosen, strict=True)]
    weights = _weights(voxels) / len(voxels.groups)
    return HeldOutSample(tuple(f.pipeline for f in own), chosen, -np.stack(rows), weights, voxels.group.numpy())


def _weights(voxels: FoldedVoxels) -> Floats:
    """Weights ``(n,)`` of all voxels, fold behind fold; those of a group add up to 1."""
    weights: Floats = torch.cat(list(voxels.weights.values())).numpy()
    return weights
