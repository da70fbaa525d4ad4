"""The rows that most scores share: packed statistics of an image, so that one pass serves them all."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.boundary import BANDS, BandTable, boundary_distance
from lightning_calib.functional.flips import FlipTable
from lightning_calib.functional.statistics import Contents, ImageStatistics
from lightning_calib.functional.sweep import image_statistics
from lightning_calib.metrics.base import PerImageMetric


class StatisticsMetric(PerImageMetric):
    """A metric whose score comes out of :class:`~lightning_calib.functional.ImageStatistics`.

    Args:
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        contents: what the rows hold; metrics share them where it is equal.
        **kwargs: options of :class:`torchmetrics.Metric`.
    """

    _arithmetic: ClassVar[Callable[..., Tensor]]  # score of each image (n,), from the statistics and ...
    _options: ClassVar[tuple[str, ...]] = ()  # ... these attributes of the metric

    def __init__(
        self,
        ignore_index: int | None = None,
        average: Average = "image",
        contents: Contents = Contents(),  # noqa: B008 (immutable)
        **kwargs: Any,
    ) -> None:
        super().__init__(("statistics", ignore_index, *contents), average, **kwargs)
        self.ignore_index = ignore_index
        self.contents = contents

    def update(
        self,
        log_probs: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        *,
        reference: Tensor | None = None,
        distance: Tensor | None = None,
    ) -> None:
        """Add a batch of images.

        Args:
            log_probs: normalised log-probabilities ``(B, C, *S)``; ``(N, C)`` is one image of ``N`` voxels.
            target: integer labels ``(B, *S)``.
            case_ids: name of each image.
            reference: what flips are counted against: the pooled input's scores ``(B, C, *S)`` or predicted
                classes ``(B, *S)``.
            distance: ``boundary_distance(target)`` for the bands, where it is at hand; a
                :class:`~lightning_calib.functional.DistanceCache` keeps it over epochs and pipelines.
        """
        held = self.contents
        if held.flips and reference is None:
            raise ValueError("flips are counted against a reference: pass the pooled logits as reference=")
        if held.bands and distance is None:
            distance = boundary_distance(target, self.ignore_index)
        statistics = self._measure(
            log_probs, target, reference if held.flips else None, distance if held.bands else None
        )
        self._append(case_ids, *pack(statistics))

    def statistics(self) -> tuple[list[str], ImageStatistics]:
        """Case ids and their statistics, gathered over processes, each case once."""
        images = self._gathered()
        return images.labels(), unpack(images.counts, images.sums, self.contents)

    def _measure(
        self, log_probs: Tensor, target: Tensor, reference: Tensor | None, distance: Tensor | None
    ) -> ImageStatistics:
        held = self.contents
        return image_statistics(
            log_probs,
            target,
            ignore_index=self.ignore_index,
            reference=reference,
            distance=distance,
            bands=held.bands or BANDS,
            num_bins=held.bins,
            classwise=held.class_bins > 0,
            class_bins=held.class_bins,
            sigma=held.sigma,
        )

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        options = (getattr(self, name) for name in self._options)
        return type(self)._arithmetic(unpack(counts, sums, self.contents), *options)

    def _some(self) -> ImageStatistics:
        """Statistics of the images of all processes; refused where there are none."""
        names, statistics = self.statistics()
        if not names:
            raise ValueError(f"{type(self).__name__} is empty: update() it first")
        return statistics


def pack(statistics: ImageStatistics) -> tuple[Tensor, Tensor]:
    """Rows of int64 counts ``(B, L)`` and of float64 sums ``(B, M)``."""
    rows = [table.reshape(len(table), -1) for table in statistics.tensors()]
    counts, sums = ([row for row in rows if row.dtype == kind] for kind in (torch.int64, torch.float64))
    return torch.cat(counts, dim=1), torch.cat(sums, dim=1)


def unpack(counts: Tensor, sums: Tensor, contents: Contents) -> ImageStatistics:
    """Statistics of rows that :func:`pack` made."""
    rows, place = {torch.int64: counts, torch.float64: sums}, {torch.int64: 0, torch.float64: 0}

    def take(like: Tensor) -> Tensor:
        shape, start = like.shape[1:], place[like.dtype]
        place[like.dtype] = end = start + shape.numel()
        return rows[like.dtype][:, start:end].reshape(len(counts), *shape)

    return _blank(contents, _num_classes(counts.shape[1], contents)).map(take)


def _num_classes(width: int, contents: Contents) -> int:
    """``C`` of a row of counts: ``C² + 2 C class_bins`` of them are confusion and class-wise tables."""
    others = 2 * contents.bins + 4 * contents.flips + 2 * max(0, len(contents.bands) - 1)
    size = contents.class_bins
    return math.isqrt(size**2 + max(0, width - others)) - size


def _blank(contents: Contents, num_classes: int) -> ImageStatistics:
    """Statistics of no images, which say the shapes."""

    def empty(counts: int, sums: int, *shape: int) -> list[Tensor]:
        kinds = [torch.int64] * counts + [torch.float64] * sums
        return [torch.empty(0, *shape, dtype=kind) for kind in kinds]

    nll, brier = empty(0, 2)
    return ImageStatistics(
        nll=nll,
        brier=brier,
        confusion=empty(1, 0, num_classes, num_classes)[0],
        bins=BinTable(*empty(2, 1, contents.bins)),
        classwise=BinTable(*empty(2, 1, num_classes, contents.class_bins)) if contents.class_bins else None,
        flips=FlipTable(*empty(4, 0)) if contents.flips else None,
        bands=BandTable(*empty(2, 2, len(contents.bands) - 1)) if contents.bands else None,
        space=empty(0, 1)[0] if contents.sigma else None,
    )
