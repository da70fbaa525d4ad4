"""Pools of members that are calibrated one by one, with a temperature that labels or the members themselves give."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightning_calib.calibrators.base import Calibrator, features_of, seen_by
from lightning_calib.calibrators.temperature import TemperatureScaling
from lightning_calib.functional.pool_temperature import pool_temperature
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import fit

_VOXELS = 2**20  # of all cases together, which the temperature without labels is taken from


class MemberPool:
    """The mean of the members' calibrated log-probabilities, with a temperature.

    Args:
        cases: stored cases with members.
        calibrator: right for each of the members by itself.
        first: the pool is the first member alone.
    """

    def __init__(self, cases: StoredCases, calibrator: Calibrator, first: bool = False) -> None:
        self.cases, self.calibrator, self.first = cases, calibrator, first

    def calibrated(self, scores: Tensor) -> Tensor:
        """Calibrated log-probabilities of scores ``(M, C, *S)``, each of the M by itself."""
        features = features_of(self.calibrator, scores)
        with torch.no_grad():
            found: Tensor = self.calibrator(scores, *seen_by(self.calibrator, features))
        return found

    def members(self, case_id: str) -> Tensor:
        """Calibrated log-probabilities ``(M, C, *S)`` of the members of a case."""
        logits = self.cases.store[case_id].logits
        assert logits is not None
        return self.calibrated(logits[:1].float() if self.first else logits.float())

    def scores(self, case_id: str, temperature: float = 1.0) -> Tensor:
        """Scores ``(C, *S)`` of the pool."""
        return self.members(case_id).mean(dim=0) / temperature

    def implied(self, case_ids: Sequence[str]) -> float:
        """The temperature that the members imply, without labels."""
        size = max(1, _VOXELS // len(case_ids))
        parts = []
        for case_id in case_ids:
            counted = self.cases.counted(case_id)
            step = max(1, -(-len(counted) // size))
            parts.append(self.members(case_id).flatten(2)[:, :, counted[::step]])
        return pool_temperature(torch.cat(parts, dim=2))

    def fitted(self, case_ids: Sequence[str]) -> float:
        """The best temperature by the labels."""
        manifest = self.cases.store.manifest
        scaling = TemperatureScaling(manifest.num_classes, manifest.spatial_dims)
        fit(scaling, _Batches(self, case_ids), ignore_index=self.cases.ignore_index)
        return float(scaling.temperature.detach())


class _Batches:
    """Batches ``(scores (1, C, *S), target (1, *S))`` of the pool; can be gone through repeatedly."""

    def __init__(self, pool: MemberPool, case_ids: Sequence[str]) -> None:
        self.pool, self.case_ids = pool, list(case_ids)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for case_id in self.case_ids:
            yield self.pool.scores(case_id)[None], self.pool.cases.target(case_id)[None]
