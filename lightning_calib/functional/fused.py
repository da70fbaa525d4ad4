"""Sums of an image by compiled loops: a table is filled while a value is in a register, not in a pass for each table.

:mod:`lightning_calib.functional.sweep` says what is computed and works everywhere; this is the same on a CPU,
in float32, where numba is installed (``pip install "lightning-calib[fast]"``).
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.boundary import BandTable
from lightning_calib.functional.flips import FlipTable
from lightning_calib.functional.statistics import Contents, ImageStatistics
from lightning_calib.functional.truth import Judged, Truth

# Values of an image below which loading the compiled loops takes longer than they save.
WORTHWHILE = 2**20


@cache
def available() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


def suits(truth: Truth, scores: Tensor) -> bool:
    """Whether the loops serve scores ``(C, m)`` of an image, and pay."""
    plain = scores.device.type == "cpu" and scores.dtype == torch.float32 and not _is_fake(scores)
    return plain and len(scores) * len(truth.labels) >= WORTHWHILE and available()


def _is_fake(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor


class FusedTables:
    """Tables of an image that chunks are added to.

    Args:
        num_classes: ``C``.
        held: what they hold.
    """

    def __init__(self, num_classes: int, held: Contents) -> None:
        bands = max(0, len(held.bands) - 1)
        self.held = held
        self.confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
        self.likelihood = np.zeros(2)
        self.bins, self.bin_sums = np.zeros((2, held.bins), dtype=np.int64), np.zeros(held.bins)
        self.classes = np.zeros((2, num_classes, held.class_bins), dtype=np.int64)
        self.class_sums = np.zeros((num_classes, held.class_bins))
        self.voxels, self.flips = 0, np.zeros(3, dtype=np.int64)
        self.bands, self.band_sums = np.zeros((2, bands), dtype=np.int64), np.zeros((2, bands))

    def add(self, judged: Judged, scores: Tensor, gap: Tensor | None) -> Tensor:
        """Add log-probabilities ``(C, m)`` of a chunk.

        Args:
            judged: the chunk.
            scores: its log-probabilities.
            gap: where the chunk's smoothed gaps come from ``(m,)``; filled, where given.

        Returns:
            Sums of the probabilities of the voxels that count ``(n,)``.
        """
        from lightning_calib.functional import compiled

        chunk, scores = judged.chunk, scores.contiguous()
        probs, count = scores.exp(), scores.shape[1]
        keep = torch.arange(count) if chunk.keep is None else chunk.keep
        top, total, square = torch.empty(count), torch.empty(count), torch.empty(count)
        place = torch.empty(count, dtype=torch.int32)
        compiled.voxel_facts(scores.numpy(), probs.numpy(), top.numpy(), place.numpy(), total.numpy(), square.numpy())
        confidence = top.double().exp_().clamp_(max=1)
        compiled.top_tables(
            scores.numpy(),
            probs.numpy(),
            keep.numpy(),
            chunk.target.numpy(),
            place.numpy(),
            confidence.numpy(),
            square.numpy(),
            self.confusion,
            self.bins,
            self.bin_sums,
            self.likelihood,
            torch.empty(0).numpy() if gap is None else gap.numpy(),
        )
        self._add_others(judged, keep, place, confidence)
        if self.held.class_bins:
            counted = torch.ones(count) if chunk.keep is None else torch.zeros(count).index_fill_(0, keep, 1)
            facts = probs.numpy(), counted.numpy(), keep.numpy(), chunk.target.numpy()
            compiled.class_tables(*facts, self.classes, self.class_sums)
        return total if chunk.keep is None else total[keep]

    def _add_others(self, judged: Judged, keep: Tensor, place: Tensor, confidence: Tensor) -> None:
        """Flips and bands of a chunk."""
        from lightning_calib.functional import compiled

        nothing = torch.empty(0, dtype=torch.int64)
        before = nothing if judged.before is None else judged.before
        band = nothing if judged.banded is None else judged.banded.band
        compiled.other_tables(
            keep.numpy(),
            judged.chunk.target.numpy(),
            place.numpy(),
            confidence.numpy(),
            before.numpy(),
            band.numpy(),
            self.flips,
            self.bands[1],
            self.band_sums[0],
        )
        self.voxels += len(before)
        if judged.banded is not None:
            self.bands[0] += judged.banded.voxels.numpy()
            self.band_sums[1] += judged.banded.distance.numpy()

    def statistics(self, flips: bool, bands: bool) -> ImageStatistics:
        """The sums, without an axis for images.

        Args:
            flips: whether there was a reference.
            bands: whether there were distances.
        """
        counts = torch.tensor([self.voxels, *self.flips.tolist()])
        nll, brier = torch.from_numpy(self.likelihood)
        return ImageStatistics(
            nll=nll,
            brier=brier,
            confusion=torch.from_numpy(self.confusion),
            bins=BinTable(*_tensors(*self.bins, self.bin_sums)),
            classwise=BinTable(*_tensors(*self.classes, self.class_sums)) if self.held.class_bins else None,
            flips=FlipTable(*counts) if flips else None,
            bands=BandTable(*_tensors(*self.bands, *self.band_sums)) if bands else None,
        )


def _tensors(*arrays: np.ndarray[Any, Any]) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]
