"""A walk over the voxels of a batch in chunks that fit a cache: checked, ignored ones left out, by expert."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator
from lightning_calib.functional.voxels import as_images

# Values of a chunk over all classes: a few such arrays fit a core's cache, or keep a GPU busy.
CHUNK_VALUES = {"cpu": 2**18, "cuda": 2**24}

# Bytes of prepared voxels that a search keeps; cases beyond that are prepared anew in every pass.
KEPT_BYTES = 3 * 2**29


@dataclass(frozen=True)
class Chunk:
    """Voxels as an affine calibrator sees them, sorted by expert.

    Attributes:
        unsorted: logits ``(C, m)`` in the precision of the computation, as they came.
        order: what sorts them by expert ``(m,)``, or ``None`` where there is one expert.
        features: ``x (C, m)`` in canonical class order.
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
class Walk:
    """How batches are cut into chunks.

    Args:
        calibrator: says what the features are.
        ignore_index: label of voxels that are left out.
        chunk_values: values in a chunk over all classes; by default what suits the device.
    """

    calibrator: AffineCalibrator
    ignore_index: int | None = None
    chunk_values: int | None = None

    def __call__(
        self, logits: Tensor, target: Tensor, case_ids: Sequence[str], first_index: int = 0
    ) -> Iterator[Chunk]:
        """Chunks of logits ``(B, C, *S)`` and labels ``(B, *S)``, or of a list of voxels ``(N, C)`` and ``(N,)``.

        Args:
            logits: pooled logits.
            target: labels.
            case_ids: one for each image; a list of voxels is one image.
            first_index: index of the first voxel in its case.
        """
        images, labels = as_images(logits, target)
        if len(case_ids) != len(images):
            raise ValueError(f"{len(case_ids)} case ids for {len(images)} images")
        values = self.chunk_values or CHUNK_VALUES.get(logits.device.type, CHUNK_VALUES["cuda"])
        size = max(1, values // images.shape[1])
        for image, label, case_id in zip(images, labels, case_ids, strict=True):
            counted = check_labels(label, len(image), case_id, self.ignore_index)
            for start in range(0, image.shape[1], size):
                part = slice(start, start + size)
                yield from self._chunk(image[:, part], label[part], first_index + start, case_id, counted)

    def _chunk(self, logits: Tensor, target: Tensor, first: int, case_id: str, counted: int) -> Iterator[Chunk]:
        """The voxels that count, as a chunk; none where all are ignored."""
        index = torch.arange(first, first + target.shape[0], device=target.device)
        if self.ignore_index is not None:
            keep = (target != self.ignore_index).nonzero().squeeze(1)
            if len(keep) < len(target):
                logits, target, index = logits.index_select(1, keep), target[keep], index[keep]
        if target.shape[0] == 0:
            return
        logits = logits.to(self.calibrator.compute_dtype(logits))
        yield self._view(logits, target.long(), index, case_id, counted)

    def _view(self, logits: Tensor, target: Tensor, index: Tensor, case_id: str, counted: int) -> Chunk:
        """Features, label positions and experts of voxels ``(C, m)``."""
        view = self.calibrator.inputs(self.calibrator.start(logits.unsqueeze(0)))
        features, position = view.features[0], target
        if view.permutation is not None:
            position = _position(view.permutation[0], target)
        if view.expert is None:
            whole = ((0, slice(0, len(target))),)
            return Chunk(logits, None, features, target, position, index, case_id, whole, counted)
        expert, order = view.expert[0].sort(stable=True)
        # index_select: a fifth of the time of features[:, order]
        columns = (features.index_select(1, order), target[order], position[order], index[order])
        return Chunk(logits, order, *columns, case_id, _slices(expert), counted)


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
        memory: bytes to keep; cases beyond are prepared anew.
    """

    memory: int = KEPT_BYTES
    kept: dict[str, list[Chunk]] = field(default_factory=dict)

    def __call__(
        self, logits: Tensor, target: Tensor, case_ids: Sequence[str], first_index: int = 0
    ) -> Iterator[Chunk]:
        """Chunks of a whole case, from memory where they are kept."""
        if len(case_ids) > 1 or first_index:
            raise ValueError(f"cases {', '.join(case_ids)} in one batch: kept voxels come case by case")
        for case_id in case_ids:
            if case_id in self.kept:
                yield from self.kept[case_id]
                continue
            chunks = []
            for chunk in super().__call__(logits, target, case_ids):
                chunks.append(chunk)
                yield chunk
            if self.used() + sum(chunk.nbytes for chunk in chunks) <= self.memory:
                self.kept[case_id] = chunks

    def used(self) -> int:
        """Bytes that are kept now."""
        return sum(chunk.nbytes for chunks in self.kept.values() for chunk in chunks)


def case_hash(case_id: str) -> int:
    """A number of 63 bits that depends on the case id only.

    Example:
        >>> case_hash("a") == case_hash("a"), case_hash("a") == case_hash("b")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(case_id.encode(), digest_size=8).digest(), "big") >> 1


def _position(permutation: Tensor, target: Tensor) -> Tensor:
    """Where each label ``(m,)`` stands in ``permutation (C, m)``."""
    places = torch.arange(permutation.shape[0], device=target.device).unsqueeze(-1)
    return ((permutation == target) * places).sum(0)


def _slices(expert: Tensor) -> tuple[tuple[int, slice], ...]:
    """Runs of equal values in a sorted vector ``(m,)``."""
    present, counts = torch.unique_consecutive(expert, return_counts=True)
    stops = counts.cumsum(0)
    runs = torch.stack([present, stops - counts, stops], dim=1).tolist()
    return tuple((number, slice(start, stop)) for number, start, stop in runs)


def check_labels(label: Tensor, num_classes: int, case_id: str, ignore_index: int | None) -> int:
    """Refuse labels of a case that name no class; the number of those that count."""
    counted = label if ignore_index is None else label[label != ignore_index]
    if counted.numel() == 0:
        return 0
    low, high = torch.stack(counted.aminmax()).tolist()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"case {case_id!r}: the target holds labels from {low} to {high}, but there are {num_classes} classes; "
            f"name the label of unlabelled voxels as ignore_index"
        )
    return counted.numel()
