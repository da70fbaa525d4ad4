"""Chunks of the voxels of an image: facts of each voxel, checked, the ignored ones left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lightning_calib.functional.devices import chunk_values, sums_device
from lightning_calib.functional.experts import top_class

# Voxels handled at once on a CPU: below this size torch stays on one core (for vectors that is faster, and where other
# processes hold the other cores, much faster). Class scores: temporaries, a few of these, stay in the cache (1 MiB
# each); larger ones come from the system anew each time, and are slower by a half.
CHUNK_VOXELS, CHUNK_VALUES = 2**15, 2**18


@dataclass(frozen=True)
class Chunk:
    """Voxels of an image that are handled at once: ``n`` of these ``m`` count.

    Attributes:
        part: place of the chunk in the flat image.
        keep: places in the chunk of the voxels that count ``(n,)``; None where all do.
        own: int64 classes ``(m,)``, 0 where a voxel does not count.
        target: int64 classes ``(n,)``, where sums are taken.
    """

    part: slice
    keep: Tensor | None
    own: Tensor
    target: Tensor

    @classmethod
    def of(cls, labels: Tensor, part: slice, keep: Tensor | None) -> Self:
        """A chunk whose labels are ``(m,)``."""
        target = only(labels, keep).long()
        own = (
            labels.long() if keep is None else torch.zeros_like(labels, dtype=torch.int64).index_copy_(0, keep, target)
        )
        return cls(part, keep, own, target.to(sums_device(labels.device)))


@dataclass(frozen=True)
class Voxels:
    """What the scores need of the prediction at the ``n`` voxels that count in a chunk of ``m``.

    Attributes:
        probs: probabilities of the whole chunk ``(C, m)``.
        prediction: int64 argmax ``(n,)``, the lowest class among equals.
        confidence: float64 top probability ``(n,)``, on a device that has float64.
        nll: ``-log q_y`` ``(n,)``.
        brier: ``|q - onehot(y)|²`` ``(n,)``.
        totals: sums of the probabilities ``(n,)``.
    """

    probs: Tensor
    prediction: Tensor
    confidence: Tensor
    nll: Tensor
    brier: Tensor
    totals: Tensor

    @classmethod
    def of(cls, scores: Tensor, chunk: Chunk) -> Self:
        """Facts of log-probabilities ``(C, m)``; nothing here waits for a device.

        Those of all voxels come first, the choice of those that count after: vectors are cheaper to thin out.
        """
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        probs, own, keep = scores.exp(), chunk.own[None], chunk.keep
        top, prediction = (only(fact[0], keep) for fact in top_class(scores[None]))
        nll = -scores.gather(0, own)[0]
        brier = probs.square().sum(dim=0) - 2 * probs.gather(0, own)[0] + 1
        sums = sums_device(top.device)
        return cls(
            probs=probs,
            prediction=prediction.to(sums),
            confidence=top.to(sums).double().exp_().clamp_(max=1),
            nll=only(nll, keep).to(sums),
            brier=only(brier, keep).to(sums),
            totals=only(probs.sum(dim=0), keep),
        )


def only(values: Tensor, keep: Tensor | None) -> Tensor:
    """The kept entries (a mask or places) along the last axis; all of them where ``keep`` is None."""
    if keep is None:
        return values
    return values[..., keep] if keep.dtype == torch.bool else values.index_select(-1, keep)


def as_images(log_probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Bring scores ``(B, C, *S)`` and labels ``(B, *S)`` to ``(B, C, N)`` and ``(B, N)``.

    Without spatial axes the batch is a list of voxels: ``(N, C)`` becomes one image ``(1, C, N)``.
    """
    if log_probs.ndim < 2 or not log_probs.is_floating_point():
        raise ValueError(f"log_probs must be floating point (B, C, *S), got {log_probs.dtype} {tuple(log_probs.shape)}")
    expected = log_probs.shape[:1] + log_probs.shape[2:]
    if target.shape != expected or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(
            f"target must hold integer labels of the shape {tuple(expected)} to go with log_probs of "
            f"{tuple(log_probs.shape)}; got {target.dtype} {tuple(target.shape)}"
        )
    return columns(log_probs.detach()), target[None] if log_probs.ndim == 2 else target.flatten(1)


def columns(values: Tensor) -> Tensor:
    """Values ``(B, K, *S)`` as ``(B, K, N)``; those of a list of voxels ``(N, K)`` as ``(1, K, N)``."""
    return values.T[None] if values.ndim == 2 else values.flatten(2)


def chunks(num_classes: int, voxels: int, device: torch.device) -> Iterator[slice]:
    """Slices of an image's voxels that are handled at once; one empty slice where there are none.

    Example:
        >>> list(chunks(2, 3, torch.device("cpu")))
        [slice(0, 32768, None)]
    """
    most = min(CHUNK_VALUES, CHUNK_VOXELS * num_classes)
    step = max(1, chunk_values(device, on_cpu=most) // num_classes)
    for start in range(0, max(1, voxels), step):
        yield slice(start, start + step)


def places(keep: Tensor | None, part: slice, count: int) -> Tensor | None:
    """Places in a chunk of the voxels that count, None where all do; a device is told their number, not asked for it.

    Example:
        >>> places(torch.tensor([True, False, True]), slice(1, 3), 1)
        tensor([1])
    """
    if keep is None or count == len(keep[part]):
        return None
    if keep.device.type == "cuda":
        return torch.nonzero_static(keep[part], size=count).flatten()
    return keep[part].nonzero().flatten()


def count_kept(keep: Tensor | None, parts: list[slice], size: int) -> list[int]:
    """Voxels of an image of ``size`` that count in each chunk; a device is waited for once.

    Example:
        >>> count_kept(None, [slice(0, 2), slice(2, 4)], 3), count_kept(torch.tensor([True, False]), [slice(0, 2)], 2)
        ([2, 1], [1])
    """
    if keep is None:
        return [len(range(size)[part]) for part in parts]
    counts: list[int] = torch.stack([keep[part].sum() for part in parts]).tolist()
    return counts


def count_labels(target: Tensor, keep: Tensor | None, parts: list[slice], num_classes: int, place: str) -> list[int]:
    """Voxels that count in each chunk; labels that name no class are refused. A device is waited for once.

    Args:
        target: ``(N,)``.
        keep: bool ``(N,)`` of the voxels that count, or None for all.
        parts: the chunks.
        num_classes: ``C``.
        place: what to call the image in an error.

    Example:
        >>> count_labels(torch.tensor([0, 9, 1]), torch.tensor([True, False, True]), [slice(0, 2), slice(2, 3)], 2, "a")
        [1, 1]
    """
    if not target.numel():
        return [0] * len(parts)
    facts = []
    for part in parts:
        labels = target[part]
        inside = torch.ones_like(labels, dtype=torch.bool) if keep is None else keep[part]
        facts.append(torch.stack([*(x.long() for x in labels.where(inside, 0).aminmax()), inside.sum()]))
    lows, highs, counts = torch.stack(facts).T.tolist()
    if min(lows) < 0 or max(highs) >= num_classes:
        first, last = (int(value) for value in only(target, keep).aminmax())
        raise ValueError(
            f"{place}: the target holds labels from {first} to {last}, but there are {num_classes} "
            "classes; name the label of unlabelled voxels as ignore_index"
        )
    return list(counts)


def check_totals(ranges: list[Tensor], place: str) -> None:
    """Refuse probabilities that do not sum to 1: smallest and largest sum of each chunk."""
    if not ranges:
        return
    found = torch.stack(ranges)
    low, high = torch.stack([found.amin(), found.amax()]).tolist()
    if not (low > 0.99 and high < 1.01):  # also catches NaN; bfloat16 log-probabilities stay within
        raise ValueError(
            f"{place}: log_probs are not normalised (the probabilities of a voxel sum to {low:.4g} or "
            f"{high:.4g}); pass log_softmax of the logits"
        )
