r"""A fixed number of voxels that stands for all of them, the same however the data are split.

Each voxel has a uniform number ``u`` from a hash of its case and index, and a weight ``w`` that grows with its
uncertainty (certain voxels have next to no curvature). Kept are, for each predicted class, the voxels with the
smallest ``u / w``, up to a threshold ``tau``; a voxel is then drawn with probability ``min(1, tau w)`` and counts
as the inverse of that many voxels (bottom-k sampling, Cohen and Kaplan 2007). Nothing here depends on the order
of voxels or on who read them: processes agree on ``tau`` through a histogram that they sum.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_calib.functional.devices import sums_device
from lightning_calib.solvers.collective import Collective
from lightning_calib.solvers.stream import Chunk, case_hash

# Bins of the histogram of u / w: BINS_PER_OCTAVE for each factor of 2 from 2^-42 to 2^48.
BINS_PER_OCTAVE, LOWEST_OCTAVE, OCTAVES = 32, -42, 90

# What is kept of a voxel beside its features.
FACTS = ("position", "weight", "mass", "stratum", "key")


@dataclass(frozen=True)
class Sample:
    """Voxels with the weight that each stands for.

    Attributes:
        features: ``x (R, k)``, float64 unless asked otherwise.
        position: place of the label ``(k,)``.
        weight: what a voxel counts, over the probability to be drawn ``(k,)``.
    """

    features: Tensor
    position: Tensor
    weight: Tensor

    @classmethod
    def merge(cls, samples: list["Sample"]) -> "Sample":
        """One sample of disjoint ones."""
        if len(samples) == 1:
            return samples[0]
        columns = [torch.cat([getattr(s, name) for s in samples], -1) for name in ("features", "position", "weight")]
        return cls(*columns)


def hashed_uniform(case_id: str, index: Tensor) -> Tensor:
    """Numbers in (0, 1) that depend on case and voxel index only (the mixer of splitmix64, Steele et al. 2014).

    Example:
        >>> bool((hashed_uniform("a", torch.arange(9)) == hashed_uniform("a", torch.arange(9))).all())
        True
    """
    mixed = (index + 1) * -7046029254386353131 + case_hash(case_id)  # 0x9E3779B97F4A7C15 as a signed number
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * factor  # a logical shift
    mixed = mixed ^ ((mixed >> 31) & ((1 << 33) - 1))
    return ((mixed >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)


class Sampler:
    """Collects the sample during a pass.

    Args:
        num_classes: ``C``, also the number of strata.
        size: voxels to keep of each predicted class.
        width: features of a voxel, ``R``; ``C`` by default.
        whole: a class with at most so many voxels keeps them all; ``size`` by default.
        dtype: precision of the sample's features.
    """

    def __init__(
        self,
        num_classes: int,
        size: int,
        width: int | None = None,
        whole: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.dtype = dtype
        self.num_classes, self.width = num_classes, width or num_classes
        self.wanted, self.size = size, max(size, whole or 0)  # of classes with more voxels than size, wanted are left
        self.limit = torch.full((num_classes,), torch.inf, dtype=torch.float64)  # keys of a stratum beyond are lost
        # Two tables that are overwritten: rows allocated chunk by chunk would be scattered between the freed
        # temporaries of the pass, and keep their pages from being used again.
        self.capacity, self.used = 2 * num_classes * (self.size + 1), 0
        self.features = torch.empty(0, self.width)  # (capacity, R) once the precision is known
        self.facts = torch.empty(self.capacity, len(FACTS), dtype=torch.float64)

    def add(
        self,
        chunk: Chunk,
        stratum: Tensor,
        weight: Tensor,
        mass: Tensor | None = None,
        rows: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Offer the voxels of a chunk.

        Args:
            chunk: the voxels.
            stratum: predicted class ``(m,)``.
            weight: how much a voxel matters to the curvature ``(m,)``; one of weight 0 is never drawn.
            mass: what a voxel counts in the objective ``(m,)``; 1 by default.
            rows: what to keep of voxels of the chunk ``(k,)``, as ``(k, R)``; their features by default.
        """
        device = sums_device(weight.device)
        stratum, position, weight = stratum.to(device), chunk.position.to(device), weight.to(device).double()
        mass = torch.ones_like(weight) if mass is None else mass.to(device)
        key = hashed_uniform(chunk.case_id, chunk.index.to(device)) / weight
        chosen = (key < self.limit.to(device)[stratum]).nonzero().squeeze(1)
        for piece in torch.split(chosen, self.capacity // 2):
            place = piece.to(chunk.features.device)
            features = chunk.features.index_select(1, place).T if rows is None else rows(place)
            columns = (position, weight, mass, stratum, key)
            facts = torch.stack([column[piece].double() for column in columns], dim=1)
            self._store(features.cpu(), facts.cpu())

    def finish(self, collective: Collective) -> list[Sample]:
        """The sample of each predicted class, the same in every process."""
        self._prune()
        features, facts = map(collective.gather, self._below(self._threshold(collective)))
        order = facts[:, -1].argsort()  # by key: one order, whoever came first
        places = [order[facts[order, -2] == number] for number in range(self.num_classes)]
        return [self._sample(features[place], facts[place]) for place in places]

    def _columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Position, weight, mass, stratum and key of the rows in use."""
        position, weight, mass, stratum, key = self.facts[: self.used].unbind(1)
        return position, weight, mass, stratum.long(), key

    def _threshold(self, collective: Collective) -> Tensor:
        """``tau`` of each stratum ``(C,)``: the lower edge of the first bin with which there would be too many."""
        histogram = torch.zeros(self.num_classes, BINS_PER_OCTAVE * OCTAVES, dtype=torch.float64)
        *_, stratum, key = self._columns()
        histogram.index_put_((stratum, _bin(key)), torch.ones_like(key), accumulate=True)
        counts = collective.sum(histogram).cumsum(1)
        most = torch.where(counts[:, -1:] <= self.size, self.size, self.wanted)
        fitting = (counts <= most).sum(1)
        edge = torch.exp2(fitting.double() / BINS_PER_OCTAVE + LOWEST_OCTAVE)
        return torch.where(fitting == counts.shape[1], torch.inf, edge)

    def _below(self, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """This process's voxels below the threshold: features; position, weight, stratum, key."""
        position, weight, mass, stratum, key = self._columns()
        tau = threshold[stratum]
        facts = torch.stack([position, mass / (tau * weight).clamp(max=1), stratum.double(), key], dim=1)
        return self.features[: self.used].to(self.dtype)[key < tau], facts[key < tau]

    def _sample(self, features: Tensor, facts: Tensor) -> Sample:
        """Rows of :meth:`finish` as a sample."""
        position, weight = facts[:, :2].unbind(1)
        return Sample(features.T.contiguous(), position.long(), weight)

    def _store(self, features: Tensor, facts: Tensor) -> None:
        """Append at most half a table of rows, pruning it before it overflows."""
        if len(self.features) == 0:
            self.features = features.new_empty(self.capacity, self.width)
        if self.used + len(facts) > self.capacity:
            self._prune()
        place = slice(self.used, self.used + len(facts))
        self.features[place], self.facts[place] = features, facts
        self.used = place.stop

    def _prune(self) -> None:
        """Keep the smallest keys of each stratum, one more than asked for: it shows that there were more."""
        *_, stratum, key = self._columns()
        keep = torch.zeros(self.used, dtype=torch.bool)
        for number in range(self.num_classes):
            own = (stratum == number).nonzero().squeeze(1)
            if len(own) > self.size + 1:
                best = key[own].topk(self.size + 1, largest=False)
                self.limit[number] = best.values.max()
                own = own[best.indices]
            keep[own] = True
        kept = keep.nonzero().squeeze(1)
        for table in (self.features, self.facts):
            table[: len(kept)] = table[kept]
        self.used = len(kept)


def _bin(key: Tensor) -> Tensor:
    """Bin of each key in the histogram."""
    bins = ((key.log2() - LOWEST_OCTAVE) * BINS_PER_OCTAVE).floor().long()
    return bins.clamp(0, BINS_PER_OCTAVE * OCTAVES - 1)
