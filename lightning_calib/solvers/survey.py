"""What the first pass learns about the data: counts, the identity's loss, suspicious regions, a sample."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_calib.functional.binning import tally
from lightning_calib.functional.devices import sums_device
from lightning_calib.functional.experts import winning_class
from lightning_calib.solvers.collective import Collective
from lightning_calib.solvers.sample import Sample, Sampler
from lightning_calib.solvers.stream import Chunk
from lightning_calib.solvers.weights import CaseWeights

# Share of voxels with the logits of their neighbour above which a region was probably never predicted.
CONSTANT_SHARE = 0.01

# Weight of a voxel without any doubt, against 1 for one in full doubt: it may get doubts at another temperature.
CERTAIN_WEIGHT = 0.25


@dataclass(frozen=True)
class Counts:
    """Results of a survey, the same in every process.

    Attributes:
        cells: voxels of each (expert, target), int64 ``(E, C)``.
        identity_loss: weighted sum of ``-log q_y`` at the identity ``(E,)``.
        repeated: voxels whose logits are those of their neighbour.
        mass: sum of the weights of all voxels.
    """

    cells: Tensor
    identity_loss: Tensor
    repeated: int
    mass: float

    @property
    def num_voxels(self) -> int:
        """``N``: voxels that count."""
        return int(self.cells.sum())

    def warnings(self) -> list[str]:
        """What a user should know about the data."""
        found = []
        missing = (self.cells.sum(0) == 0).nonzero().flatten().tolist()
        if missing:
            found.append(f"no voxel of the classes {missing}: the ridge alone decides what they get; add cases")
        share = self.repeated / max(1, self.num_voxels)
        if share > CONSTANT_SHARE:
            found.append(
                f"{share:.1%} of the voxels repeat their neighbour's logits exactly: a region that was never "
                f"predicted? leave it out with a valid mask or ignore_index"
            )
        return found


class Survey:
    """Sums of the first pass; they stay on the device of the data.

    Args:
        num_experts: ``E``.
        num_classes: ``C``.
        sample_size: voxels to keep of each predicted class; 0 for counts alone.
        known: ``cells`` of an earlier survey; voxels that may be of a class with few are then drawn more often.
        weights: what voxels count; 1 by default.
        width: numbers that are kept of a voxel; ``C`` by default.
        scores: of an expert at the point that the pass looks at, from features; where ``known``.
        whole: a class with at most so many voxels keeps them all; ``sample_size`` by default.
        wanted: predicted classes that a sample is drawn of; all by default.
    """

    def __init__(
        self,
        num_experts: int,
        num_classes: int,
        sample_size: int,
        known: Tensor | None = None,
        weights: CaseWeights | None = None,
        width: int | None = None,
        scores: Callable[[int, Tensor], Tensor] | None = None,
        whole: int | None = None,
        wanted: list[bool] | None = None,
    ) -> None:
        self.scores, self.wanted = scores, wanted
        self.shape, self.weights = (num_experts, num_classes), weights
        self.rarity: Tensor | None = None  # (E, C): 1 for a class with a fair share of the expert's voxels
        if known is not None:
            self.rarity = known.sum(1, keepdim=True) / (num_classes * known.clamp(min=1))
        self.sums = torch.zeros(num_experts * num_classes + num_experts + 2, dtype=torch.float64)
        self.sampler = Sampler(num_classes, sample_size, width, whole)
        if wanted is not None:
            self.sampler.limit[~torch.tensor(wanted)] = 0.0  # no key is smaller

    def add(self, chunk: Chunk) -> None:
        """Add the voxels of a chunk."""
        logits = chunk.logits
        self.sums = self.sums.to(sums_device(logits.device))
        log_probs = logits.log_softmax(0)
        mass = None if self.weights is None else self.weights.of(chunk)
        self._count(chunk, logits, log_probs, mass)
        if not self.sampler.size:
            return
        probs = log_probs.exp_()
        weight = 1 - probs.square().sum(0) + CERTAIN_WEIGHT
        if self.rarity is not None:
            self.rarity = self.rarity.to(probs)
            for expert, part in chunk.experts:
                rare = probs[:, part] * self.rarity[expert].unsqueeze(1)
                weight[part] = weight[part].maximum(rare.amax(0))
                if self.scores is not None:
                    now = self.scores(expert, chunk.features[:, part]).softmax(0)
                    now = now * self.rarity[expert].unsqueeze(1)
                    weight[part] = weight[part].maximum(now.amax(0))
        self.sampler.add(chunk, self._stratum(chunk, logits), weight if mass is None else weight * mass, mass)

    def finish(self, collective: Collective) -> tuple[Counts, list[Sample]]:
        """Counts and sample over all processes."""
        cells, loss, repeated, mass = self._parts(collective.sum(self.sums).cpu())
        counts = Counts(cells.round().long(), loss, int(repeated), float(mass))
        if counts.num_voxels == 0:
            raise ValueError("no valid voxels to fit on: every target is ignore_index, or there are no batches")
        if counts.mass == 0:
            raise ValueError("every voxel has the weight 0: give at least one case a positive one")
        return counts, self.sampler.finish(collective)

    def _parts(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Views of ``cells (E, C)``, ``identity_loss (E,)``, ``repeated (1,)`` and ``mass (1,)``."""
        num_experts, num_classes = self.shape
        cells, loss, repeated, mass = torch.split(sums, [num_experts * num_classes, num_experts, 1, 1])
        return cells.view(self.shape), loss, repeated, mass

    def _count(self, chunk: Chunk, logits: Tensor, log_probs: Tensor, weight: Tensor | None) -> None:
        cells, identity_loss, repeated, mass = self._parts(self.sums)
        loss = -log_probs.gather(0, chunk.target.unsqueeze(0)).squeeze(0)
        if weight is not None:
            loss = loss * weight
        mass += len(loss) if weight is None else weight.sum(dtype=torch.float64).to(mass)
        for expert, part in chunk.experts:
            identity_loss[expert] += loss[part].to(identity_loss.device).sum(dtype=torch.float64)
            cells[expert] += tally(chunk.target[part], self.shape[1]).to(cells)
        repeated += (logits[:, 1:] == logits[:, :-1]).all(0).sum().to(repeated)

    def _stratum(self, chunk: Chunk, logits: Tensor) -> Tensor:
        """Predicted class ``(m,)``; experts are those already."""
        if self.shape[0] == 1:
            return winning_class(logits.unsqueeze(0))[0]
        stratum = torch.empty_like(chunk.target)
        for expert, part in chunk.experts:
            stratum[part] = expert
        return stratum
