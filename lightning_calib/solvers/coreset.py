r"""A coreset: voxels with weights that stand for all of them, small enough to stay in memory for many fits.

Two passes draw it: the first counts the voxels of each cell (predicted class, label), the second draws. A voxel of cell
``iy`` is drawn, by its hashed number (:mod:`~lightning_calib.solvers.sample`), with a probability that grows with

.. math::
    \max\left(1 - q_y + c,\; 1 - \sum_k q_k^2 + c,\; \frac{4 n_i}{C\, n_{iy}},\;
    \max_k q_k \frac{n_i}{C\, n_{ik}}\right), \qquad q = S(z / T)

with the best of some temperatures ``T``, and counts as the inverse of that many voxels: by its share of the gradient,
by that of the curvature, by what a rare cell needs to be there as a whole, and by what it tells about a rare class that
it may be of. Sums over the coreset are unbiased. What is left of their error at a point ``theta_0`` where the sums over
all voxels are known is taken out by :func:`look`:

.. math::
    F_S(\theta) + \langle \nabla F(\theta_0) - \nabla F_S(\theta_0), \theta \rangle

has the slope of ``F`` at ``theta_0``, so that ``theta_0`` stays the optimum where it was one, and only curvature is
estimated (a control variate; Shamir et al. 2014 fit distributed data by such models).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_calib.calibrators import LinearCalibrator, MatrixScaling
from lightning_calib.functional.binning import tally
from lightning_calib.functional.experts import winning_class
from lightning_calib.solvers.base import Batch, check_size
from lightning_calib.solvers.collective import ALONE
from lightning_calib.solvers.coordinates import coordinates_of
from lightning_calib.solvers.sample import Sample, Sampler
from lightning_calib.solvers.stream import Chunk, Walk
from lightning_calib.solvers.sums import PassSums
from lightning_calib.solvers.survey import Counts, Survey
from lightning_calib.solvers.weights import CaseWeights

# Voxels of a coreset (docs/fitting.md has the pilot), and of the data from which on there is one.
CORESET_VOXELS = 2**18

# What a predicted class gets at most where others have few voxels, times an even share.
MOST_SHARE = 2

# Doubts are looked at as they are at the best of these temperatures, by every so manieth voxel: fits bring them up.
TEMPERATURES, EVERY = (1.0, 1.4, 2.0, 2.8, 4.0, 5.7, 8.0), 16

# How much more a voxel of a rare cell counts than one that may be of it.
OWN = 4.0

# What a voxel without any doubt counts, against 1 for one in full doubt: it may get doubts at another temperature.
CERTAIN = 0.05

NAME = "coreset"


@dataclass(frozen=True)
class Coreset:
    """Voxels with what each counts.

    Attributes:
        logits: pooled ``(C, k)``, float32.
        target: labels ``(k,)``.
        weight: inverse probability to be drawn ``(k,)``, float64; 1 where all voxels are here.
    """

    logits: Tensor
    target: Tensor
    weight: Tensor

    @property
    def batch(self) -> Batch:
        """All of it, as solvers take a case."""
        return self.logits[None], self.target[None], [NAME]

    @property
    def case_weights(self) -> dict[str, Tensor]:
        """What its voxels count, as newton takes it."""
        return {NAME: self.weight.float()}

    @torch.no_grad()
    def samples(self, calibrator: LinearCalibrator, walk: Walk) -> list[Sample]:
        """Its voxels as samples of newton's experts."""
        parts: list[list[Sample]] = [[] for _ in range(calibrator.num_experts)]
        for chunk in walk(self.logits[None], self.target[None], [NAME]):
            weight = self.weight.to(chunk.index.device)[chunk.index]
            for expert, part in chunk.experts:
                columns = chunk.features[:, part].double(), chunk.position[part], weight[part]
                parts[expert].append(Sample(*(column.cpu() for column in columns)))
        none = torch.empty(0, dtype=torch.float64)
        empty = Sample(none.expand(coordinates_of(calibrator).width, 0), none.long(), none)
        return [Sample.merge(part or [empty]) for part in parts]

    def sums(self, calibrator: LinearCalibrator, walk: Walk) -> tuple[float, Tensor]:
        """Mean NLL of the voxels by their weights, and its gradient in ``[W | b]`` of each expert."""
        coordinates = coordinates_of(calibrator)
        sums = PassSums(coordinates, coordinates.read(), weights=CaseWeights(self.case_weights))
        return _means(sums, walk, [self.batch], float(self.weight.sum()))


def is_large(voxels: int) -> bool:
    """Whether data have more voxels than a coreset."""
    return voxels > CORESET_VOXELS


def draw(batches: Iterable[Batch], num_classes: int, ignore_index: int | None, size: int | None = None) -> Coreset:
    """Draw a coreset of about ``size`` voxels, the same share for each predicted class; the same for any batch split.

    Args:
        batches: whole cases with ids; gone through twice.
        num_classes: ``C``.
        ignore_index: label of voxels that do not count.
        size: voxels, ``CORESET_VOXELS`` by default; data with fewer are kept whole.

    Example:
        >>> logits = torch.randn(1, 3, 50, 50, generator=torch.Generator().manual_seed(0))
        >>> coreset = draw([(logits, logits.argmax(1), ["a"])], 3, None, size=600)
        >>> len(coreset.weight) <= 600, 2000 < coreset.weight.sum() < 3000
        (True, tensor(True))
    """
    walk, size = Walk(MatrixScaling(num_classes), ignore_index), size or CORESET_VOXELS
    cells, temperature = _facts(walk, batches, num_classes)
    sampler = Sampler(num_classes, _share(cells.sum(1), size), num_classes)
    rarity = (cells.sum(1, keepdim=True) / (num_classes * cells.clamp(min=1))).float()
    for chunk, winner in _chunks(walk, batches):
        weight = _importance(chunk, rarity.to(winner.device), winner, temperature)
        sampler.add(replace(chunk, features=chunk.unsorted), winner, weight)
    found = Sample.merge(sampler.finish(ALONE))
    return Coreset(found.features.float(), found.position, found.weight)


@dataclass(frozen=True)
class Lacking:
    """What sums over all voxels have at a point, and those over a coreset have not.

    Attributes:
        counts: of all voxels.
        loss: difference of the mean NLL.
        slope: difference of its gradient ``(E, P)``.
    """

    counts: Counts
    loss: float
    slope: Tensor


@torch.no_grad()
def look(calibrator: LinearCalibrator, walk: Walk, batches: Iterable[Batch], coreset: Coreset, own: Walk) -> Lacking:
    """What a coreset lacks where the calibrator is, by one pass over all voxels.

    Args:
        calibrator: the point.
        walk: prepares the voxels of the batches.
        batches: all voxels.
        coreset: drawn from them.
        own: prepares the voxels of the coreset.
    """
    coordinates = coordinates_of(calibrator)
    survey = Survey(coordinates.num_experts, coordinates.num_classes, 0)
    loss, gradient = _means(PassSums(coordinates, coordinates.read()), walk, batches, survey=survey)
    some_loss, some = coreset.sums(calibrator, own)
    return Lacking(survey.finish(ALONE)[0], loss - some_loss, coordinates.pullback(gradient - some))


@torch.no_grad()
def _means(
    sums: PassSums, walk: Walk, batches: Iterable[Batch], mass: float | None = None, survey: Survey | None = None
) -> tuple[float, Tensor]:
    """Loss over all experts and gradient of each, over the mass of the voxels; by default their number."""
    voxels = 0
    for logits, target, case_ids, *_ in batches:
        for chunk in walk(logits, target, case_ids or [NAME]):
            sums.add(chunk)
            voxels += len(chunk.target)
            if survey is not None:
                survey.add(chunk)
    loss, gradient = sums.total(ALONE)
    return float(loss.sum()) / (mass or voxels), gradient / (mass or voxels)


@torch.no_grad()
def _chunks(walk: Walk, batches: Iterable[Batch]) -> Iterator[tuple[Chunk, Tensor]]:
    """All voxels, and the class that each predicts ``(m,)``."""
    for logits, target, case_ids, *_ in batches:
        for chunk in walk(logits, target, case_ids or [NAME]):
            yield chunk, winning_class(chunk.unsorted.unsqueeze(0))[0]


def _share(voxels: Tensor, size: int) -> int:
    """Voxels to keep of each predicted class, of which there are ``voxels (C,)``: what rare ones leave goes to others.

    Example:
        >>> _share(torch.tensor([10, 100, 1000]), 300), _share(torch.tensor([10, 20, 30]), 300)
        (190, 30)
    """
    ends = voxels.sort().values
    left = [(size - int(ends[:k].sum())) // (len(ends) - k) for k in range(len(ends))]
    fits = next((share for share, end in zip(left, ends.tolist(), strict=True) if share < end), int(ends[-1]))
    return max(1, min(fits, MOST_SHARE * size // len(ends)))


def _facts(walk: Walk, batches: Iterable[Batch], num_classes: int) -> tuple[Tensor, float]:
    """Voxels of each cell (predicted class, label) ``(C, C)``, and the best temperature."""
    cells, largest = torch.zeros(num_classes * num_classes, dtype=torch.long), []
    losses = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    for chunk, winner in _chunks(walk, batches):
        largest.append(chunk.unsorted.abs().amax())
        cells += tally(winner * num_classes + chunk.target, len(cells)).to(cells)
        logits, target = chunk.unsorted[:, ::EVERY], chunk.target[::EVERY].unsqueeze(0)
        nll = [-(logits / value).log_softmax(0).gather(0, target).sum(dtype=losses.dtype) for value in TEMPERATURES]
        losses += torch.stack(nll).to(losses)
    check_size(largest)
    return cells.view(num_classes, num_classes), TEMPERATURES[int(losses.argmin())]


def _importance(chunk: Chunk, rarity: Tensor, winner: Tensor, temperature: float) -> Tensor:
    """How much each voxel matters ``(m,)``."""
    probs = (chunk.unsorted / temperature).softmax(0)
    slope = 1 - probs.gather(0, chunk.target.unsqueeze(0))[0]
    curvature = 1 - probs.square().sum(0)
    rare = (probs * rarity.T.index_select(1, winner)).amax(0)
    return (slope.maximum(curvature) + CERTAIN).maximum(OWN * rarity[winner, chunk.target]).maximum(rare)
