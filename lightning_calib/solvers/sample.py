r"""A fixed number of voxels that stands for all of them, the same however the data are split.

Each voxel has a uniform number ``u`` from a hash of its case and index, and a weight ``w`` that grows with its
uncertainty (certain voxels have next to no curvature). Kept are, for each predicted class, the voxels with the
smallest ``u / w``, up to a threshold ``tau``; a voxel is then drawn with probability ``min(1, tau w)`` and counts
as the inverse of that many voxels (bottom-k sampling, Cohen and Kaplan 2007). Nothing here depends on the order
of voxels or on who read them: processes agree on ``tau`` through a histogram that they sum.
"""

import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_calib.solvers.stream import Chunk, case_hash
from lightning_calib.solvers.sums import Reduce

# Bins of the histogram of u / w: BINS_PER_OCTAVE for each factor of 2 from 2^-42 to 2^8.
BINS_PER_OCTAVE, LOWEST_OCTAVE, OCTAVES = 32, -42, 50

# Seats from which processes that only know how to sum find out their order.
SEATS = 2**16


@dataclass(frozen=True)
class Sample:
    """Voxels with the number of voxels that each stands for.

    Attributes:
        features: ``x (C, k)``, float64.
        position: place of the label ``(k,)``.
        weight: inverse of the probability to be drawn ``(k,)``.
    """

    features: Tensor
    position: Tensor
    weight: Tensor

    @classmethod
    def merge(cls, samples: list["Sample"]) -> "Sample":
        """One sample of disjoint ones."""
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
    """

    def __init__(self, num_classes: int, size: int) -> None:
        self.num_classes, self.size = num_classes, size
        self.limit = torch.full((num_classes,), torch.inf, dtype=torch.float64)
        # One table that is overwritten: rows allocated chunk by chunk would be scattered between the freed
        # temporaries of the pass, and keep their pages from being used again.
        self.capacity, self.used = 2 * num_classes * (size + 1), 0
        self.table: dict[str, Tensor] = {}

    @property
    def rows(self) -> dict[str, Tensor]:
        """Columns of the voxels kept so far."""
        return {name: column[: self.used] for name, column in self.table.items()}

    def add(self, chunk: Chunk, winner: Tensor, weight: Tensor) -> None:
        """Offer the voxels of a chunk.

        Args:
            chunk: the voxels.
            winner: predicted class ``(m,)``.
            weight: how much a voxel matters ``(m,)``, positive.
        """
        weight = weight.double().cpu()
        key = hashed_uniform(chunk.case_id, chunk.index.cpu()) / weight
        stratum = winner.cpu()
        chosen = (key < self.limit[stratum]).nonzero().squeeze(1)
        for start in range(0, len(chosen), self.capacity // 2):
            piece = chosen[start : start + self.capacity // 2]
            at = piece.to(chunk.features.device)
            self._store(
                features=chunk.features[:, at].T.cpu(),
                position=chunk.position[at].cpu(),
                weight=weight[piece],
                stratum=stratum[piece],
                key=key[piece],
            )

    def finish(self, reduce: Reduce) -> list[Sample]:
        """The sample of each predicted class, the same in every process."""
        self._prune()
        rows = gather(self._below(self._threshold(reduce)), reduce)
        rows = rows[rows[:, -1].argsort()]  # by key: one order, whoever came first
        return [self._sample(rows[rows[:, -2] == number]) for number in range(self.num_classes)]

    def _threshold(self, reduce: Reduce) -> Tensor:
        """``tau`` of each stratum ``(C,)``: the lower edge of the first bin with which there would be too many."""
        histogram = torch.zeros(self.num_classes, BINS_PER_OCTAVE * OCTAVES, dtype=torch.float64)
        if self.used:
            rows = self.rows
            ones = torch.ones_like(rows["key"])
            histogram.index_put_((rows["stratum"], _bin(rows["key"])), ones, accumulate=True)
        counts = reduce(histogram).cpu().cumsum(1)
        fitting = (counts <= self.size).sum(1)
        edge = torch.exp2(fitting.double() / BINS_PER_OCTAVE + LOWEST_OCTAVE)
        return torch.where(fitting == counts.shape[1], torch.inf, edge)

    def _below(self, threshold: Tensor) -> Tensor:
        """This process's voxels below the threshold: features, position, weight, stratum, key."""
        if not self.used:
            return torch.zeros(0, self.num_classes + 4, dtype=torch.float64)
        rows = self.rows
        tau = threshold[rows["stratum"]]
        rows["weight"] = 1 / (tau * rows["weight"]).clamp(max=1)
        columns = [value if value.ndim == 2 else value.unsqueeze(1) for value in rows.values()]
        return torch.cat([column.double() for column in columns], dim=1)[rows["key"] < tau]

    def _sample(self, rows: Tensor) -> Sample:
        """Rows of :meth:`finish` as a sample."""
        features, (position, weight) = rows[:, : self.num_classes], rows[:, self.num_classes : -2].unbind(1)
        return Sample(features.T.contiguous(), position.long(), weight)

    def _store(self, **rows: Tensor) -> None:
        """Append at most half a table of rows, pruning it before it overflows."""
        count = len(rows["key"])
        if self.used + count > self.capacity:
            self._prune()
        for name, values in rows.items():
            if name not in self.table:
                self.table[name] = values.new_empty(self.capacity, *values.shape[1:])
            self.table[name][self.used : self.used + count] = values
        self.used += count

    def _prune(self) -> None:
        """Keep the smallest keys of each stratum, one more than asked for: it shows that there were more."""
        if not self.used:
            return
        rows = self.rows
        keep = torch.zeros(self.used, dtype=torch.bool)
        for number in range(self.num_classes):
            own = (rows["stratum"] == number).nonzero().squeeze(1)
            if len(own) > self.size + 1:
                best = rows["key"][own].topk(self.size + 1, largest=False)
                self.limit[number] = best.values.max()
                own = own[best.indices]
            keep[own] = True
        self.used = int(keep.sum())
        for name, values in rows.items():
            self.table[name][: self.used] = values[keep]


def gather(rows: Tensor, reduce: Reduce) -> Tensor:
    """Rows of all processes below each other, by means of sums alone.

    Each process takes a random seat; where two took the same, all try again. The seats in order are the ranks.

    Args:
        rows: float64 ``(n, K)``, with an ``n`` of its own in each process.
        reduce: sums a float64 tensor over processes.
    """
    processes = int(reduce(torch.ones(1, dtype=torch.float64)))
    if processes == 1:
        return rows
    while True:
        seat, seats = secrets.randbelow(SEATS), torch.zeros(2, SEATS, dtype=torch.float64)
        seats[0, seat], seats[1, seat] = 1, len(rows)
        taken, counts = reduce(seats).cpu()
        if int(taken.max()) == 1:
            break
    start = int(counts[:seat].sum())
    everyone = torch.zeros(int(counts.sum()), rows.shape[1], dtype=torch.float64)
    everyone[start : start + len(rows)] = rows
    return reduce(everyone).cpu()


def _bin(key: Tensor) -> Tensor:
    """Bin of each key in the histogram."""
    bins = ((key.log2() - LOWEST_OCTAVE) * BINS_PER_OCTAVE).floor().long()
    return bins.clamp(0, BINS_PER_OCTAVE * OCTAVES - 1)
