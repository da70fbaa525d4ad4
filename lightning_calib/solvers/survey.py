"""What the first pass learns about the data: counts, the identity's loss, suspicious regions, a sample."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_calib.functional.experts import winning_class
from lightning_calib.solvers.sample import Sample, Sampler
from lightning_calib.solvers.stream import Chunk
from lightning_calib.solvers.sums import Reduce

# Share of voxels with the logits of their neighbour above which a region was probably never predicted.
CONSTANT_SHARE = 0.01

# Weight of a voxel without any doubt, against 1 for one in full doubt: it may get doubts at another temperature.
CERTAIN_WEIGHT = 0.25


@dataclass(frozen=True)
class Facts:
    """Results of a survey, the same in every process.

    Attributes:
        cells: voxels of each (expert, target), int64 ``(E, C)``.
        identity_loss: sum of ``-log q_y`` at the identity ``(E,)``.
        repeated: voxels whose logits are those of their neighbour.
    """

    cells: Tensor
    identity_loss: Tensor
    repeated: int

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
    """Sums of the first pass.

    Args:
        num_experts: ``E``.
        num_classes: ``C``.
        sample_size: voxels to keep of each predicted class.
        known: ``cells`` of an earlier survey; voxels that may be of a class with few are then drawn more often.
    """

    def __init__(self, num_experts: int, num_classes: int, sample_size: int, known: Tensor | None = None) -> None:
        self.num_experts = num_experts
        self.rarity: Tensor | None = None  # (E, C): 1 for a class with a fair share of the expert's voxels
        if known is not None:
            self.rarity = known.sum(1, keepdim=True) / (num_classes * known.clamp(min=1))
        self.cells = torch.zeros(num_experts, num_classes, dtype=torch.float64)
        self.identity_loss = torch.zeros(num_experts, dtype=torch.float64)
        self.repeated = torch.zeros(1, dtype=torch.float64)
        self.sampler = Sampler(num_classes, sample_size)

    def add(self, chunk: Chunk) -> None:
        """Add the voxels of a chunk."""
        logits = chunk.logits
        log_probs = logits.log_softmax(0)
        loss = -log_probs.gather(0, chunk.target.unsqueeze(0)).squeeze(0)
        for expert, part in chunk.experts:
            self.identity_loss[expert] += loss[part].sum(dtype=torch.float64).cpu()
            self.cells[expert] += torch.bincount(chunk.target[part], minlength=self.cells.shape[1]).cpu()
        self.repeated += (logits[:, 1:] == logits[:, :-1]).all(0).sum().cpu()
        probs = log_probs.exp_()
        weight = 1 - probs.square().sum(0) + CERTAIN_WEIGHT
        if self.rarity is not None:
            for expert, part in chunk.experts:
                rare = probs[:, part] * self.rarity[expert].to(probs).unsqueeze(1)
                weight[part] = weight[part].maximum(rare.amax(0))
        self.sampler.add(chunk, self._stratum(chunk, logits), weight)

    def finish(self, reduce: Reduce) -> tuple[Facts, list[Sample]]:
        """Facts and sample over all processes."""
        sums = reduce(torch.cat([self.cells.flatten(), self.identity_loss, self.repeated])).cpu()
        cells, loss, repeated = torch.split(sums, [self.cells.numel(), self.num_experts, 1])
        facts = Facts(cells.view(self.cells.shape).round().long(), loss, int(repeated))
        if facts.num_voxels == 0:
            raise ValueError("no valid voxels to fit on: every target is ignore_index, or there are no batches")
        return facts, self.sampler.finish(reduce)

    def _stratum(self, chunk: Chunk, logits: Tensor) -> Tensor:
        """Predicted class ``(m,)``; experts are those already."""
        if self.num_experts == 1:
            return winning_class(logits.unsqueeze(0))[0]
        sizes = [part.stop - part.start for _, part in chunk.experts]
        return torch.tensor([expert for expert, _ in chunk.experts]).repeat_interleave(torch.tensor(sizes))
