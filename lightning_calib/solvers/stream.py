"""A walk over the voxels of a batch in chunks that fit a cache: checked, ignored ones left out, by expert."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from lightning_calib.calibrators import LinearCalibrator
from lightning_calib.calibrators.base import seen_by
from lightning_calib.functional.binning import tally
from lightning_calib.functional.devices import Fetched, chunk_values, free_bytes, one_ahead
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.voxels import as_images, count_labels, places

# Values of a chunk over all classes on a CPU: a few such arrays fit a core's cache.
CHUNK_VALUES = 2**18

# Bytes of prepared voxels that a search keeps on a CPU; cases beyond that are prepared anew in every pass.
KEPT_BYTES = 3 * 2**29


@dataclass(frozen=True)
class Case:
    """An image, before it is cut into chunks.

    Attributes:
        logits: ``(C, N)``.
        target: labels ``(N,)``.
        features: ``(F, N)``, where the calibrator looks at them.
        case_id: its name.
        voxels: how many count.
    """

    logits: Tensor
    target: Tensor
    features: Tensor | None
    case_id: str
    voxels: int


@dataclass(frozen=True)
class Chunk:
    """Voxels as a linear calibrator sees them, sorted by expert.

    Attributes:
        unsorted: logits ``(C, m)`` in the precision of the computation, as they came.
        order: what sorts them by expert ``(m,)``, or ``None`` where there is one expert.
        features: ``x (R, m)``; classes in canonical order.
        target: labels ``(m,)``.
        position: place of the label in canonical order ``(m,)``.
        index: place of the voxel in its case ``(m,)``.
        case_id: the case.
        experts: each expert with voxels here, and the slice of its voxels.
        case_voxels: voxels of the case that count, as far as it came in one piece.
    """

    unsorted: Tensor
    order: Tensor | None
    features: Tensor
    target: Tensor
    position: Tensor
    index: Tensor
    case_id: str
    experts: tuple[tuple[int, slice], ...]
    case_voxels: int

    @property
    def logits(self) -> Tensor:
        """Logits ``(C, m)`` in the order of the other columns; only the first pass needs them."""
        return self.unsorted if self.order is None else self.unsorted.index_select(1, self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        values = (getattr(self, entry.name) for entry in fields(self))
        return sum(value.nbytes for value in values if isinstance(value, Tensor))


@dataclass(frozen=True)
class Prepared:
    """A chunk whose experts may still be on their way from the device.

    Attributes:
        chunk: all but its experts, where there are several.
        counts: voxels of each expert; None where there is one.
    """

    chunk: Chunk
    counts: Fetched | None = None

    def ready(self) -> Chunk:
        """The chunk, once the experts are known."""
        return self.chunk if self.counts is None else replace(self.chunk, experts=expert_slices(self.counts))


@dataclass(frozen=True)
class Walk:
    """How batches are cut into chunks.

    Args:
        calibrator: says what the features are.
        ignore_index: label of voxels that are left out.
        chunk_values: values in a chunk over all classes; by default what suits the device.
    """

    calibrator: LinearCalibrator
    ignore_index: int | None = None
    chunk_values: int | None = None

    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str],
        features: Tensor | None = None,
        first_index: int = 0,
        only: Collection[int] | None = None,
    ) -> Iterator[Chunk]:
        """Chunks of logits ``(B, C, *S)`` and labels ``(B, *S)``, or of a list of voxels ``(N, C)`` and ``(N,)``.

        Args:
            logits: pooled logits.
            target: labels.
            case_ids: one for each image; a list of voxels is one image.
            features: ``(B, F, *S)`` or ``(N, F)``, for calibrators that look at them.
            first_index: index of the first voxel in its case.
            only: experts whose voxels are asked for: others need not be prepared; all by default.
        """
        images, labels = as_images(logits, target)
        if len(case_ids) != len(images):
            raise ValueError(f"{len(case_ids)} case ids for {len(images)} images")
        extra: Sequence[Tensor | None] = [None] * len(images)
        if self.calibrator.looks_at == "features" and features is not None:
            extra = as_images(features, target)[0]  # type: ignore[assignment]  # iterates over its images
        values = self.chunk_values or chunk_values(logits.device, on_cpu=CHUNK_VALUES)
        size = max(1, values // self.calibrator.voxel_values)
        parts = [slice(start, start + size) for start in range(0, images.shape[2], size)]
        for image, label, case_id, more in zip(images, labels, case_ids, extra, strict=True):
            keep = None if self.ignore_index is None else label != self.ignore_index
            counts = count_labels(label, keep, parts, len(image), f"case {case_id!r}")
            case = Case(image, label, more, case_id, sum(counts))
            ready = (
                self._prepare(case, part, first_index + part.start, self._of(only, image[:, part], keep, part, count))
                for part, count in zip(parts, counts, strict=True)
                if count
            )
            yield from (prepared.ready() for prepared in one_ahead(ready, logits.device))

    def _of(
        self, only: Collection[int] | None, logits: Tensor, keep: Tensor | None, part: slice, count: int
    ) -> Tensor | None:
        """Places in a part of the voxels that count, of some experts; on a GPU to ask costs more than it saves."""
        counted = places(keep, part, count)
        if only is None or 2 * len(only) > self.num_experts or logits.device.type != "cpu":
            return counted
        chosen = torch.zeros(self.num_experts, dtype=torch.bool)
        chosen[list(only)] = True
        if counted is not None:
            logits = logits.index_select(1, counted)
        wanted = chosen[winning_class(logits.unsqueeze(0))[0]].nonzero().squeeze(1)
        return wanted if counted is None else counted[wanted]

    def _prepare(self, case: Case, part: slice, first: int, keep: Tensor | None) -> Prepared:
        """The voxels of a part that count: features, label positions, sorted by expert."""
        logits, target = case.logits[:, part], case.target[part]
        more = None if case.features is None else case.features[:, part]
        index = torch.arange(first, first + target.shape[0], device=target.device)
        if keep is not None:
            logits, target, index = logits.index_select(1, keep), target[keep], index[keep]
            more = None if more is None else more.index_select(1, keep)
        logits, target = logits.to(self.calibrator.compute_dtype(logits)), target.long()
        more = None if more is None else more.to(logits).unsqueeze(0)
        started, seen = self.calibrator.start(logits.unsqueeze(0)), seen_by(self.calibrator, more)
        (features,), expert, (position,) = self.calibrator.labelled(started, target.unsqueeze(0), *seen)
        if expert is None:
            everything = ((0, slice(0, len(target))),)
            return Prepared(
                Chunk(logits, None, features, target, position, index, case.case_id, everything, case.voxels)
            )
        sorted_expert, order = expert[0].sort(stable=True)
        # index_select: a fifth of the time of features[:, order]
        columns = (features.index_select(1, order), target[order], position[order], index[order])
        chunk = Chunk(logits, order, *columns, case.case_id, (), case.voxels)
        return Prepared(chunk, Fetched([tally(sorted_expert, self.num_experts)]))

    def keeps(self, case_ids: Sequence[str] | None) -> bool:
        """Whether the walk needs no more than the names of these cases."""
        return False

    @cached_property
    def num_experts(self) -> int:
        """``E``."""
        return self.calibrator.num_experts


@dataclass(frozen=True)
class KeptWalk(Walk):
    """A walk that remembers the chunks of each case, for many fits of one pipeline.

    Sorting voxels by expert and classes by rank takes most of a pass, and does not depend on the parameters. What it
    is told must therefore stay true as long as it lives:

    - a batch holds one whole case, or none;
    - a case id stands for the same logits and labels, on the same device, whenever it comes;
    - whoever uses the walk fits calibrators of one kind and precision: those that see a voxel as ``calibrator`` does.

    Args:
        calibrator: says what the features are.
        ignore_index: label of voxels that are left out.
        chunk_values: values in a chunk over all classes; by default what suits the device.
        memory: bytes to keep, cases beyond are prepared anew; by default 1.5 GiB, on a GPU up to half of what is free.
    """

    memory: int | None = None
    kept: dict[str, list[Chunk]] = field(default_factory=dict)

    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str],
        features: Tensor | None = None,
        first_index: int = 0,
        only: Collection[int] | None = None,
    ) -> Iterator[Chunk]:
        """Chunks of a whole case, from memory where they are kept; voxels of all experts."""
        if len(case_ids) > 1 or first_index:
            raise ValueError(f"cases {', '.join(case_ids)} in one batch: kept voxels come case by case")
        for case_id in case_ids:
            if case_id in self.kept:
                yield from self.kept[case_id]
                continue
            chunks = []
            for chunk in super().__call__(logits, target, case_ids, features):
                chunks.append(chunk)
                yield chunk
            if self.used() + sum(chunk.nbytes for chunk in chunks) <= self._most(logits.device):
                self.kept[case_id] = chunks

    def keeps(self, case_ids: Sequence[str] | None) -> bool:
        """Whether all of them are in memory."""
        return case_ids is not None and all(case_id in self.kept for case_id in case_ids)

    def used(self) -> int:
        """Bytes that are kept now."""
        return sum(chunk.nbytes for chunks in self.kept.values() for chunk in chunks)

    def _most(self, device: torch.device) -> int:
        """Bytes that may be kept: on a GPU as much as stays free beside them."""
        if self.memory is not None:
            return self.memory
        return free_bytes(device) if device.type == "cuda" else KEPT_BYTES


def case_hash(case_id: str) -> int:
    """A number of 63 bits that depends on the case id only.

    Example:
        >>> case_hash("a") == case_hash("a"), case_hash("a") == case_hash("b")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(case_id.encode(), digest_size=8).digest(), "big") >> 1


def expert_slices(counts: Fetched) -> tuple[tuple[int, slice], ...]:
    """Each expert with voxels, and the slice of its voxels, from how many each has ``(E,)``."""
    voxels: list[int] = counts.read()[0].tolist()
    edges = pairwise(accumulate(voxels, initial=0))
    return tuple((number, slice(*edge)) for number, edge in enumerate(edges) if voxels[number])
