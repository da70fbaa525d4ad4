"""One pass over an image's log-probabilities that yields the sums behind every score."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lightning_calib.functional.binning import TABLE_BINS, BinTable, bin_index, tally
from lightning_calib.functional.boundary import BANDS, BandTable, check_bands
from lightning_calib.functional.classwise import class_tables
from lightning_calib.functional.devices import on_cpu
from lightning_calib.functional.flips import FlipTable, as_reference, classes_of
from lightning_calib.functional.overlap import class_counts, dice, mean_iou
from lightning_calib.functional.voxels import Voxels, as_images, only, walk


@dataclass(frozen=True)
class ImageStatistics:
    """Sums over the voxels of each of ``B`` images, on the CPU: int64 counts and float64 sums.

    Attributes:
        nll: sum of ``-log q_y`` ``(B,)``.
        brier: sum of ``|q - onehot(y)|²`` ``(B,)``.
        confusion: voxels of each true and predicted class ``(B, C, C)``.
        bins: table of top-label confidences ``(B, K)``.
        classwise: tables of each class's probability ``(B, C, K)``, where asked for.
        flips: changed predictions ``(B,)``, where a reference was given.
        bands: table of distance bands ``(B, bands)``, where distances were given.
    """

    nll: Tensor
    brier: Tensor
    confusion: Tensor
    bins: BinTable
    classwise: BinTable | None = None
    flips: FlipTable | None = None
    bands: BandTable | None = None

    @classmethod
    def concatenate(cls, parts: "Sequence[ImageStatistics]") -> "ImageStatistics":
        """Statistics of several batches of images as one."""
        return _combine(parts, torch.cat)

    def map(self, function: Callable[[Tensor], Tensor]) -> "ImageStatistics":
        """The function applied to every tensor, inside the tables too."""
        return _combine([self], lambda one: function(one[0]))

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of :meth:`map`."""
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def pooled(self) -> "ImageStatistics":
        """All voxels as those of one image: ``B = 1``."""
        return self.map(lambda tensor: tensor.sum(dim=0, keepdim=True))

    @property
    def voxels(self) -> Tensor:
        """Voxels that count ``(B,)``."""
        return self.bins.voxels.sum(dim=-1)

    def negative_log_likelihood(self) -> Tensor:
        """Mean of ``-log q_y`` of each image ``(B,)``; NaN without voxels, as all scores here."""
        return self.nll / self.voxels

    def brier_score(self) -> Tensor:
        """Mean of ``|q - onehot(y)|²`` of each image ``(B,)``."""
        return self.brier / self.voxels

    def accuracy(self) -> Tensor:
        """Share of voxels whose prediction is right ``(B,)``."""
        return self.bins.correct.sum(dim=-1) / self.voxels.double()

    def dice_score(self, include_background: bool = True, background: int = 0) -> Tensor:
        """Mean Dice over the classes present in target or prediction ``(B,)``."""
        return dice(class_counts(self.confusion), include_background, background)

    def mean_iou(self, include_background: bool = True, background: int = 0) -> Tensor:
        """Mean intersection over union over the classes present in target or prediction ``(B,)``."""
        return mean_iou(class_counts(self.confusion), include_background, background)

    def expected_calibration_error(self, num_bins: int = 50) -> Tensor:
        """Gaps weighted by occupancy ``(B,)``."""
        return self.bins.coarsen(num_bins).expected_error()

    def average_calibration_error(self, num_bins: int = 15) -> Tensor:
        """Gaps averaged over non-empty bins ``(B,)``."""
        return self.bins.coarsen(num_bins).average_error()

    def maximum_calibration_error(self, num_bins: int = 15) -> Tensor:
        """The largest gap ``(B,)``."""
        return self.bins.coarsen(num_bins).maximum_error()

    def classwise_calibration_error(self, num_bins: int = 50) -> Tensor:
        """Expected error of each class's probability, averaged over classes ``(B,)``."""
        if self.classwise is None:
            raise ValueError("these statistics hold no class-wise tables; compute them with classwise=True")
        return self.classwise.coarsen(num_bins).expected_error().mean(dim=-1)

    def flip_rate(self) -> Tensor:
        """Share of voxels whose prediction differs from the reference ``(B,)``."""
        if self.flips is None:
            raise ValueError("these statistics hold no flips; compute them with reference=")
        return self.flips.rate()

    def boundary_aware_calibration_error(self) -> Tensor:
        """Weighted gaps of the distance bands ``(B,)``."""
        if self.bands is None:
            raise ValueError("these statistics hold no distance bands; compute them with distance=")
        return self.bands.error()


def image_statistics(
    log_probs: Tensor,
    target: Tensor,
    *,
    ignore_index: int | None = None,
    valid: Tensor | None = None,
    reference: Tensor | None = None,
    distance: Tensor | None = None,
    bands: Sequence[float] = BANDS,
    num_bins: int = TABLE_BINS,
    classwise: bool = False,
    class_bins: int | None = None,
) -> ImageStatistics:
    """Everything that the scores need of a batch of images, in one chunked pass.

    Memory beyond the input does not depend on the number of voxels. An image's sums do not depend on the
    batch that it came in.

    Args:
        log_probs: normalised log-probabilities ``(B, C, *S)``; ``(N, C)`` is one image of ``N`` voxels.
        target: integer labels ``(B, *S)``.
        ignore_index: label of voxels that count nowhere.
        valid: bool ``(B, *S)``; voxels outside do not count.
        reference: what flips are counted against: scores ``(B, C, *S)`` or predicted classes ``(B, *S)``.
        distance: distances to the boundary ``(B, *S)`` from :func:`boundary_distance`, for the bands.
        bands: edges of the distance bands.
        num_bins: bins of the tables; 600 serve 15, 20, 30, 40 and 50 exactly.
        classwise: also a table for each class (about three times the work).
        class_bins: bins of each class's table; ``num_bins`` by default.

    Returns:
        :class:`ImageStatistics`; its methods are the scores.

    Example:
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log().T[None]  # B=1, C=2, 2 voxels
        >>> statistics = image_statistics(log_probs, torch.tensor([[0, 1]]))
        >>> statistics.expected_calibration_error().item()
        0.35...
    """
    scores, labels = as_images(log_probs, target)
    edges = check_bands(bands)
    sizes = num_bins, (class_bins or num_bins) if classwise else 0
    before = None if reference is None else as_reference(reference, log_probs, target)
    maps = [_flat(values, target, labels, name) for values, name in ((valid, "valid"), (distance, "distance"))]
    images = []
    for i, (image, own) in enumerate(zip(scores, labels, strict=True)):
        inside, away = (None if values is None else values[i] for values in maps)
        keep = _counting(own, ignore_index, inside)
        old = None if before is None else before[i]
        _check_distance(away, keep)
        parts = walk(image, own, keep, f"image {i} of the batch")
        sums = reduce(_add, (chunk_sums(part, sizes, old, away, edges) for part in parts))
        images.append(sums.map(lambda tensor: tensor[None]))
    return _on_cpu(ImageStatistics.concatenate(images))


def _on_cpu(statistics: ImageStatistics) -> ImageStatistics:
    copies = iter(on_cpu(statistics.tensors()))
    return statistics.map(lambda _: next(copies))


def _counting(target: Tensor, ignore_index: int | None, valid: Tensor | None) -> Tensor | None:
    """Mask ``(N,)`` of the voxels that count; None where all do."""
    keep = valid
    if ignore_index is not None:
        labelled = target != ignore_index
        keep = labelled if keep is None else keep & labelled
    return keep


def _flat(values: Tensor | None, target: Tensor, labels: Tensor, name: str) -> Tensor | None:
    """A map shaped like the target as ``(B, N)``."""
    if values is None:
        return None
    if values.shape != target.shape:
        raise ValueError(f"{name} has the shape {tuple(values.shape)}, the target {tuple(target.shape)}")
    return values.reshape(labels.shape)


def _check_distance(distance: Tensor | None, keep: Tensor | None) -> None:
    if distance is None:
        return
    fine = distance >= 0
    if not bool((fine if keep is None else fine | ~keep).all()):
        raise ValueError("distances must be 0 or more; compute them with boundary_distance(target)")


def chunk_sums(
    voxels: Voxels,
    sizes: tuple[int, int],
    reference: Tensor | None,
    distance: Tensor | None,
    edges: tuple[float, ...],
) -> ImageStatistics:
    """Sums of one chunk, on its device; nothing here waits for it."""
    num_classes = voxels.probs.shape[0]
    num_bins, class_bins = sizes
    correct = voxels.prediction == voxels.target
    pairs = voxels.target * num_classes + voxels.prediction
    confusion = tally(pairs, num_classes**2).view(num_classes, num_classes)
    bins = BinTable.of(bin_index(voxels.confidence, num_bins), correct, voxels.confidence, num_bins)
    flips = bands = None
    if reference is not None:
        old = only(classes_of(reference, voxels.part), voxels.keep).to(correct.device)
        flips = FlipTable.of(voxels.prediction, old, voxels.target)
    if distance is not None:
        away = only(distance[voxels.part], voxels.keep).to(correct.device)
        bands = BandTable.of(away, ~correct, voxels.confidence, edges)
    return ImageStatistics(
        nll=voxels.nll.sum(dtype=torch.float64),
        brier=voxels.brier.sum(dtype=torch.float64),
        confusion=confusion,
        bins=bins,
        classwise=class_tables(voxels, class_bins) if class_bins else None,
        flips=flips,
        bands=bands,
    )


def _add(first: ImageStatistics, second: ImageStatistics) -> ImageStatistics:
    return _combine([first, second], lambda pair: pair[0] + pair[1])


def _combine(parts: Sequence[ImageStatistics], combine: Callable[[list[Tensor]], Tensor]) -> ImageStatistics:
    """Apply ``combine`` to each tensor of the parts, inside the tables too."""

    def merged(values: list[Any]) -> Any:  # noqa: ANN401
        if values[0] is None:
            return None
        if isinstance(values[0], Tensor):
            return combine(values)
        return type(values[0])(*(combine(list(column)) for column in zip(*values, strict=True)))

    return ImageStatistics(*(merged([getattr(part, f.name) for part in parts]) for f in fields(ImageStatistics)))
