"""The sums behind the scores of many calibrators, from one pass over the voxels of a batch."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightning_calib.calibrators.base import Calibrator, seen_by
from lightning_calib.functional.features import pick
from lightning_calib.functional.shared import shared
from lightning_calib.functional.statistics import Contents, ImageStatistics
from lightning_calib.functional.sweep import Maps, map_of, sweep, truths_of
from lightning_calib.functional.truth import Truth
from lightning_calib.functional.voxels import columns


class Judging:
    """Scores maps of calibrators without making the maps, where the calibrators look at voxels one by one.

    Chunks of voxels go by all such calibrators in turn: what they ask of the same logits is computed once, and what
    they answer is summed up while it is in the cache. Those that look at neighbours make a whole map each.

    Args:
        calibrators: fitted calibrators.
        feature_names: features that batches hold.
        ignore_index: label of voxels that count nowhere.
        held: what statistics are to hold.
    """

    def __init__(
        self,
        calibrators: Sequence[Calibrator],
        feature_names: Sequence[str],
        ignore_index: int | None,
        held: Contents,
    ) -> None:
        self.calibrators, self.feature_names = calibrators, tuple(feature_names)
        self.ignore_index, self.held = ignore_index, held

    def __call__(
        self, logits: Tensor, target: Tensor, features: Tensor | None, distance: Tensor | None
    ) -> list[ImageStatistics]:
        """Statistics of a batch by each calibrator.

        Args:
            logits: pooled logits ``(B, C, *S)``; ``(N, C)`` is one image of ``N`` voxels.
            target: labels ``(B, *S)``.
            features: maps ``(B, F, *S)``.
            distance: distances to the boundary ``(B, *S)``.
        """
        truths = truths_of(logits, target, self.held, self.ignore_index, None, logits, distance)
        rows = []
        for i, truth in enumerate(truths):
            image = slice(None) if logits.ndim == 2 else slice(i, i + 1)
            rows.append(self._image(truth, logits[image], None if features is None else features[image]))
        return [ImageStatistics.concatenate(column) for column in zip(*rows, strict=True)]

    def log_probs(self, calibrator: Calibrator, logits: Tensor, features: Tensor | None) -> Tensor:
        """Calibrated log-probabilities of scores, from all features that go with them."""
        seen = pick(features, self.feature_names, calibrator.feature_names)
        found: Tensor = calibrator(logits, *seen_by(calibrator, seen))
        return found

    def _image(self, truth: Truth, logits: Tensor, features: Tensor | None) -> list[ImageStatistics]:
        """Statistics of an image by each calibrator."""
        alone = [each for each in self.calibrators if each.looks_at != "neighbourhood"]
        found = iter(sweep(truth, self._turns(alone, logits, features), self.held, len(alone)) if alone else [])
        return [
            self._whole(each, truth, logits, features) if each.looks_at == "neighbourhood" else next(found)
            for each in self.calibrators
        ]

    def _turns(self, calibrators: Sequence[Calibrator], logits: Tensor, features: Tensor | None) -> Maps:
        """What calibrators say of a part of an image, one after the other."""
        scores, seen = columns(logits), None if features is None else columns(features)

        def maps(part: slice) -> Iterator[Tensor]:
            chunk = scores[..., part].to(torch.promote_types(scores.dtype, torch.float32)).contiguous()
            own = None if seen is None else seen[..., part]
            with shared(chunk):
                for calibrator in calibrators:
                    yield self.log_probs(calibrator, chunk, own)[0]

        return maps

    def _whole(self, calibrator: Calibrator, truth: Truth, logits: Tensor, features: Tensor | None) -> ImageStatistics:
        """Statistics of the map of one calibrator."""
        return sweep(truth, map_of(columns(self.log_probs(calibrator, logits, features))[0]), self.held, 1)[0]
