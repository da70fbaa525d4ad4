"""The rows that likelihood, overlap and confidence metrics share: one pass over a batch serves them all."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_calib.functional.averages import Average
from lightning_calib.functional.binning import TABLE_BINS, BinTable
from lightning_calib.functional.overlap import class_counts
from lightning_calib.functional.statistics import image_statistics
from lightning_calib.metrics.base import PerImageMetric


class Tables(NamedTuple):
    """Sums of ``n`` images.

    Attributes:
        bins: top-label confidence bins ``(n, K)``.
        classes: voxels of each class that agree, are predicted, are labelled ``(n, C, 3)``.
        nll: sum of ``-log q_y`` ``(n,)``.
        brier: sum of ``|q - onehot(y)|²`` ``(n,)``.
    """

    bins: BinTable
    classes: Tensor
    nll: Tensor
    brier: Tensor

    @property
    def voxels(self) -> Tensor:
        """Voxels that count ``(n,)``."""
        return self.bins.voxels.sum(dim=-1)


class SharedMetric(PerImageMetric):
    """A metric whose score comes out of :class:`Tables`.

    Args:
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        table_bins: bins of the fine table.
        **kwargs: options of :class:`torchmetrics.Metric`.
    """

    def __init__(
        self,
        ignore_index: int | None = None,
        average: Average = "image",
        table_bins: int = TABLE_BINS,
        **kwargs: Any,
    ) -> None:
        super().__init__(("shared", ignore_index, table_bins), average, **kwargs)
        self.ignore_index = ignore_index
        self.table_bins = table_bins

    @abstractmethod
    def _table_scores(self, tables: Tables) -> Tensor:
        """Score of each image ``(n,)``."""

    def update(self, log_probs: Tensor, target: Tensor, case_ids: Sequence[str] | None = None) -> None:
        """Add a batch of images.

        Args:
            log_probs: normalised log-probabilities ``(B, C, *S)``; ``(N, C)`` is one image of ``N`` voxels.
            target: integer labels ``(B, *S)``.
            case_ids: name of each image.
        """
        s = image_statistics(log_probs, target, ignore_index=self.ignore_index, num_bins=self.table_bins)
        counts = torch.cat([s.bins.voxels, s.bins.correct, class_counts(s.confusion).flatten(1)], dim=1)
        sums = torch.cat([s.bins.confidence, s.nll[:, None], s.brier[:, None]], dim=1)
        self._append(case_ids, counts, sums)

    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        return self._table_scores(self._tables(counts, sums))

    def _tables(self, counts: Tensor, sums: Tensor) -> Tables:
        """Unpack the rows that :meth:`update` packed."""
        size = self.table_bins
        bins = BinTable(counts[:, :size], counts[:, size : 2 * size], sums[:, :size])
        classes = counts[:, 2 * size :].reshape(len(counts), -1, 3)
        return Tables(bins, classes, sums[:, size], sums[:, size + 1])
