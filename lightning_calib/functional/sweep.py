"""One pass over an image that yields the sums behind every score, of one prediction or of many."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lightning_calib.functional.binning import TABLE_BINS, BinTable, bin_index, tally
from lightning_calib.functional.boundary import BANDS, BandTable, boundary_distance, check_bands
from lightning_calib.functional.classwise import class_tables
from lightning_calib.functional.devices import on_cpu
from lightning_calib.functional.flips import FlipTable, as_reference
from lightning_calib.functional.fused import FusedTables, suits
from lightning_calib.functional.smoothed import GapMap, check_sigma
from lightning_calib.functional.statistics import Contents, ImageStatistics, add
from lightning_calib.functional.truth import Judged, Truth
from lightning_calib.functional.voxels import Voxels, as_images, check_totals

Maps = Callable[[slice], Iterable[Tensor]]
"""Log-probabilities ``(C, m)`` of a part of an image, by each of the predictions."""


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
    sigma: float = 0.0,
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
        sigma: width in voxels of the Gaussian that smooths uncertainty and error; 0 to leave that out.

    Returns:
        :class:`ImageStatistics`; its methods are the scores.

    Example:
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log().T[None]  # B=1, C=2, 2 voxels
        >>> statistics = image_statistics(log_probs, torch.tensor([[0, 1]]))
        >>> statistics.expected_calibration_error().item()
        0.35...
    """
    held = Contents(
        bins=num_bins,
        class_bins=(class_bins or num_bins) if classwise else 0,
        flips=reference is not None,
        bands=() if distance is None else check_bands(bands),
        sigma=sigma,
    )
    images = as_images(log_probs, target)[0]
    truths = truths_of(log_probs, target, held, ignore_index, valid, reference, distance)
    found = [sweep(truth, map_of(image), held, 1)[0] for truth, image in zip(truths, images, strict=True)]
    return ImageStatistics.concatenate(found)


def map_of(image: Tensor) -> Maps:
    """One prediction that is at hand as a whole ``(C, N)``."""
    return lambda part: [image[:, part]]


def truths_of(
    log_probs: Tensor,
    target: Tensor,
    held: Contents,
    ignore_index: int | None = None,
    valid: Tensor | None = None,
    reference: Tensor | None = None,
    distance: Tensor | None = None,
) -> Iterable[Truth]:
    """What each image of a batch is judged by.

    Args:
        log_probs: scores of the shape that will be judged.
        target: as in :func:`image_statistics`, and all that follow.
        held: what will be asked for.
        ignore_index: label of voxels that count nowhere.
        valid: which voxels count.
        reference: what flips are counted against.
        distance: distances to the boundary; computed where bands are held and none are given.
    """
    scores, labels = as_images(log_probs, target)
    if held.sigma:
        check_sigma(held.sigma, log_probs)
    if held.bands and distance is None:
        distance = boundary_distance(target, ignore_index)
    before = as_reference(reference, log_probs, target) if held.flips and reference is not None else None
    inside, away = (_flat(values, target, labels, name) for values, name in ((valid, "valid"), (distance, "distance")))
    for i, own in enumerate(labels):
        yield Truth(
            own,
            _counting(own, ignore_index, None if inside is None else inside[i]),
            target.shape[1:],
            scores.shape[1],
            f"image {i} of the batch",
            None if before is None else before[i],
            None if away is None or not held.bands else away[i],
            held.bands,
            held.sigma,
        )


def sweep(truth: Truth, maps: Maps, held: Contents, count: int) -> list[ImageStatistics]:
    """Statistics of one image as each of several predictions has it; the chunks go by all of them in turn.

    Args:
        truth: what the image is judged by.
        maps: the predictions.
        held: what statistics are to hold.
        count: how many predictions there are.
    """
    tables = [_Sums(truth, held) for _ in range(count)]
    for judged in truth:
        for table, scores in zip(tables, maps(judged.chunk.part), strict=True):
            table.add(judged, scores)
    return [table.result() for table in tables]


class _Sums:
    """Sums of the chunks of an image that have come in."""

    def __init__(self, truth: Truth, held: Contents) -> None:
        self.truth, self.held = truth, held
        self.found: ImageStatistics | None = None
        self.fused: FusedTables | None = None
        self.ranges: list[Tensor] = []
        self.gap = GapMap(truth.shape, truth.labels.device) if held.sigma else None

    def add(self, judged: Judged, scores: Tensor) -> None:
        """Add the log-probabilities of a chunk."""
        if suits(self.truth, scores):
            self.fused = self.fused or FusedTables(len(scores), self.held)
            gap = None if self.gap is None else self.gap.values[judged.chunk.part]
            totals = self.fused.add(judged, scores, gap)
        else:
            voxels = Voxels.of(scores, judged.chunk)
            sums = chunk_sums(voxels, judged, self.held, self.gap)
            self.found, totals = sums if self.found is None else add(self.found, sums), voxels.totals
        if len(totals):
            self.ranges.append(torch.stack(totals.aminmax()))

    def result(self) -> ImageStatistics:
        """Statistics of the image ``(1, ...)``, on the CPU; refused where probabilities do not sum to 1."""
        check_totals(self.ranges, self.truth.place)
        if self.fused is not None:
            self.found = self.fused.statistics(self.truth.reference is not None, self.truth.distance is not None)
        assert self.found is not None  # an image has a chunk, if an empty one
        if self.gap is not None:
            smoothed = self.gap.smoothed_sum(self.truth.keep, self.truth.mass, self.held.sigma)
            self.found = replace(self.found, space=smoothed)
        copies = iter(on_cpu(self.found.tensors()))
        return self.found.map(lambda _: next(copies)[None])


def chunk_sums(voxels: Voxels, judged: Judged, held: Contents, gap: GapMap | None = None) -> ImageStatistics:
    """Sums of one chunk, on its device; nothing here waits for it."""
    chunk, num_classes = judged.chunk, voxels.probs.shape[0]
    correct = voxels.prediction == chunk.target
    confusion = tally(chunk.target * num_classes + voxels.prediction, num_classes**2).view(num_classes, num_classes)
    if gap is not None:
        gap.fill(chunk, voxels, correct)
    flips = None if judged.before is None else FlipTable.of(voxels.prediction, judged.before, chunk.target)
    bands = None if judged.banded is None else BandTable.of(judged.banded, ~correct, voxels.confidence)
    return ImageStatistics(
        nll=voxels.nll.sum(dtype=torch.float64),
        brier=voxels.brier.sum(dtype=torch.float64),
        confusion=confusion,
        bins=BinTable.of(bin_index(voxels.confidence, held.bins), correct, voxels.confidence, held.bins),
        classwise=class_tables(voxels, chunk, held.class_bins) if held.class_bins else None,
        flips=flips,
        bands=bands,
    )


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
