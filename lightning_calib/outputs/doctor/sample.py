"""A fixed random sample of a stored case's voxels, read without touching the rest of the file."""

import zlib
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from lightning_calib.outputs.store import StoredCase

RUN = 32  # neighbours read together: a page of the file serves all of them, and they show constant fills
LABELS = 64  # labels are cheap to read and rare ones matter: so many times more of them are looked at


@dataclass(frozen=True)
class Sample:
    """Voxels of one case.

    Attributes:
        case: the case.
        index: flat positions ``(N)`` of the voxels, in runs of ``run`` neighbours.
        run: length of a run.
        scores: ``(M, C, N)`` in float32; ``z`` and ``p0`` stand for members where the store keeps pooled maps.
        target: labels ``(N)``.
        valid: where the networks predicted, ``(N)``.
        labels: labels of a larger sample.
    """

    case: StoredCase
    index: Tensor
    run: int
    scores: Tensor
    target: Tensor
    valid: Tensor
    labels: Tensor

    @property
    def seen(self) -> Tensor:
        """Scores ``(M, C, N')`` of the voxels that were predicted and are finite."""
        return self.scores[..., self.valid & self.scores.isfinite().all(dim=0).all(dim=0)]

    @property
    def counted(self) -> Tensor:
        """Voxels ``(N)`` with finite scores that were predicted and whose label is a class."""
        labelled = (self.target >= 0) & (self.target < self.scores.shape[1])
        if (ignore := self.case.manifest.ignore_index) is not None:
            labelled &= self.target != ignore
        return labelled & self.valid & self.scores.isfinite().all(dim=0).all(dim=0)


def take_sample(case: StoredCase, voxels: int | None, seed: int) -> Sample:
    """Draw voxels of a case; the same ones for the same seed, case id and shape.

    Args:
        case: the case.
        voxels: how many, about; None takes all.
        seed: seed of the draw.
    """
    index, run = runs(case, voxels, seed)
    target = case.target.flatten()
    many = runs(case, None if voxels is None else LABELS * voxels, seed)[0]
    valid = torch.ones(len(index), dtype=torch.bool) if case.valid is None else case.valid.flatten()[index]
    return Sample(case, index, run, score_maps(case).flatten(2)[..., index].float(), target[index], valid, target[many])


def runs(case: StoredCase, voxels: int | None, seed: int) -> tuple[Tensor, int]:
    """Flat positions of the voxels to look at, and the length of the runs that they form."""
    total = prod(case.shape)
    if voxels is None or total <= voxels + RUN:
        return torch.arange(total), total
    generator = torch.Generator().manual_seed(seed + zlib.crc32(case.case_id.encode()))
    starts = torch.randint(total - RUN, (max(voxels // RUN, 1),), generator=generator).sort().values
    return (starts[:, None] + torch.arange(RUN)).flatten(), RUN


def view_scores(sample: Sample, axes: tuple[int, int] | None = None, flip: int | None = None) -> Tensor:
    """Scores ``(M, C, N)`` at the sampled voxels if two axes were swapped, or a spatial one ran the other way.

    Args:
        sample: the voxels.
        axes: two axes of ``(M, C, *S)``, of equal length.
        flip: an axis of ``S``.
    """
    maps = score_maps(sample.case)
    # torch's own unravel_index loads its symbolic shapes at the first call, and sympy with them.
    place = [torch.from_numpy(axis) for axis in np.unravel_index(sample.index.numpy(), sample.case.shape)]
    if flip is not None:
        place[flip] = sample.case.shape[flip] - 1 - place[flip]
    swapped = maps if axes is None else maps.transpose(*axes)  # a view: nothing is read yet
    index: tuple[slice | Tensor, ...] = (slice(None), slice(None), *place)
    return swapped[index].float()


def score_maps(case: StoredCase) -> Tensor:
    """Scores ``(M, C, *S)``, mapped; pooled maps stand for members where there are no others."""
    if (logits := case.logits) is not None:
        return logits
    return torch.stack([case.pooled("z"), case.pooled("p0")])
