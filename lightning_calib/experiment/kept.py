"""Voxels prepared once for the many fits of a search, as far as they fit into memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator
from lightning_calib.outputs.stored import CaseStream
from lightning_calib.solvers.stream import Chunk, Walk
from lightning_calib.solvers.sums import PassSums

# Bytes of prepared voxels that a search keeps; cases beyond that are prepared anew in every pass.
MEMORY = 3 * 2**29


@dataclass(frozen=True)
class KeptWalk(Walk):
    """A walk that remembers the chunks of each case.

    Sorting voxels by expert and classes by rank takes most of a pass, and does not depend on the parameters.

    Args:
        calibrator: says what the features are.
        ignore_index: label of voxels that are left out.
        chunk_values: values in a chunk over all classes; by default what suits the device.
        memory: bytes to keep.
    """

    memory: int = MEMORY
    kept: dict[str, list[Chunk]] = field(default_factory=dict)

    def __call__(
        self, logits: Tensor, target: Tensor, case_ids: Sequence[str], first_index: int = 0
    ) -> Iterator[Chunk]:
        """Chunks of whole cases, from memory where they are kept."""
        (case_id,) = case_ids
        if case_id in self.kept:
            yield from self.kept[case_id]
            return
        chunks = []
        for chunk in super().__call__(logits, target, case_ids, first_index):
            chunks.append(chunk)
            yield chunk
        if self.used() + size_of(chunks) <= self.memory:
            self.kept[case_id] = chunks

    def used(self) -> int:
        """Bytes that are kept now."""
        return sum(size_of(chunks) for chunks in self.kept.values())


def size_of(chunks: list[Chunk]) -> int:
    """Bytes of the arrays of some chunks."""
    values = [getattr(chunk, entry.name) for chunk in chunks for entry in fields(chunk)]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


@torch.no_grad()
def affine_nll(calibrator: AffineCalibrator, batches: CaseStream, walk: Walk) -> float:
    """NLL over all voxels together, by the sums that the solver takes.

    Equal to the mean over ``calibrator(logits)`` up to rounding, without the repair of preservation, which moves
    nothing by more than the last digit.

    Args:
        calibrator: any affine one.
        batches: the cases.
        walk: how to prepare them.
    """
    weight, bias = calibrator.assemble()
    matrices = torch.cat([weight, bias.unsqueeze(-1)], dim=-1).double()
    sums, voxels = PassSums(matrices, torch.ones(len(matrices))), 0
    for logits, target, case_ids in batches:
        for chunk in walk(logits, target, case_ids):
            sums.add(chunk)
            voxels += chunk.target.numel()
    return float(sums.loss.sum()) / voxels
