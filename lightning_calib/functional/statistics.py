"""The sums behind every score, and the scores that come out of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_calib.functional.binning import TABLE_BINS, BinTable
from lightning_calib.functional.boundary import BandTable
from lightning_calib.functional.flips import FlipTable
from lightning_calib.functional.overlap import class_counts, dice, mean_iou


class Contents(NamedTuple):
    """What statistics hold beside likelihood, Brier score and confusion.

    Attributes:
        bins: bins of the top-label table.
        class_bins: bins of each class's table; 0 for none.
        flips: whether flips are counted.
        bands: edges of the distance bands; empty for none.
        sigma: width of the Gaussian of the smoothed gaps; 0 for none.
    """

    bins: int = TABLE_BINS
    class_bins: int = 0
    flips: bool = False
    bands: tuple[float, ...] = ()
    sigma: float = 0.0


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
        space: sum of the smoothed gaps between uncertainty and error ``(B,)``, where asked for.
    """

    nll: Tensor
    brier: Tensor
    confusion: Tensor
    bins: BinTable
    classwise: BinTable | None = None
    flips: FlipTable | None = None
    bands: BandTable | None = None
    space: Tensor | None = None

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

    def space_error(self) -> Tensor:
        """Mean gap between smoothed uncertainty and smoothed error ``(B,)``."""
        if self.space is None:
            raise ValueError("these statistics hold no smoothed gaps; compute them with sigma=")
        return self.space / self.voxels


def add(first: ImageStatistics, second: ImageStatistics) -> ImageStatistics:
    """Sums of two parts of the same images."""
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
