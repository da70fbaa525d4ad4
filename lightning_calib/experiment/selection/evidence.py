"""Candidates cross-fitted on the groups of some cases: one look at the data that several choices share."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning_calib.calibrators import Calibrator, PipelineName
from lightning_calib.experiment.selection.crossfit import CrossFitter
from lightning_calib.experiment.selection.fit import GroupFitter, sample_temperature
from lightning_calib.experiment.selection.folds import MIN_GROUPS, SAMPLE_VOXELS, FoldedVoxels
from lightning_calib.experiment.selection.held_out import HeldOutSample, held_out_sample, held_out_table
from lightning_calib.experiment.selection.ladder import LADDER, REFERENCE, HeldOut, ladder_order
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import Outside, StoredCases
from lightning_calib.solvers.sandwich import TemperatureInterval


class Evidence:
    """What fits that had not seen a group say about it, for every candidate; fits on all cases are made once.

    Args:
        store: the outputs.
        case_ids: the cases to use; no other is read.
        groups: group of each of them.
        candidates: pipelines, in any order; those that newton fits, and identities.
        seed: seed of the folds.
        voxels: size of the sample that candidates are fitted and judged on; fits on all cases take all voxels.
        outside: what voxels count as that were never predicted.
        cache: keep pooled maps on disk beside the store.

    Attributes:
        manifest: facts on the outputs.
        groups: names of the groups.
        table: held-out NLL of all candidates; None where there are too few groups.
    """

    def __init__(
        self,
        store: OutputStore,
        case_ids: Sequence[str],
        groups: Mapping[str, str],
        candidates: Sequence[str] = LADDER,
        seed: int = 0,
        voxels: int = SAMPLE_VOXELS,
        outside: Outside = "exclude",
        cache: bool = True,
    ) -> None:
        self.manifest, num_classes = store.manifest, store.manifest.num_classes
        cases = StoredCases(store, "p", outside, cache)
        self._folded = FoldedVoxels(cases, case_ids, groups, seed, voxels)
        self.groups = self._folded.groups
        self._fitter = CrossFitter(self._folded, num_classes)
        enough = len(self.groups) >= MIN_GROUPS
        order = ladder_order([REFERENCE, *candidates], num_classes) if enough else ()
        self._fitted = [self._fitter(pipeline) for pipeline in order]
        self.table: HeldOut | None = held_out_table(self._folded, self._fitted) if enough else None
        self._all = GroupFitter(cases, case_ids, groups)
        self._fits: dict[tuple[str, float], tuple[Calibrator, dict[str, Any]]] = {}
        self._temperatures: dict[Pooling, TemperatureInterval] = {}

    def fit(self, pipeline: str, strength: float) -> tuple[Calibrator, dict[str, Any]]:
        """A candidate fitted on all cases, and its certificate."""
        key = (pipeline, strength)
        if key not in self._fits:
            self._fits[key] = self._all(pipeline, strength)
        return self._fits[key]

    def temperature(self, pooling: Pooling) -> TemperatureInterval:
        """Temperature of all groups together, and how sure it is."""
        if pooling not in self._temperatures:
            self._temperatures[pooling] = sample_temperature(self._fitter, pooling)
        return self._temperatures[pooling]

    def sample(self, pooling: Pooling, strengths: Mapping[str, float], candidates: Collection[str]) -> HeldOutSample:
        """Held-out log-probabilities of the candidates of one pooling, each at its strength."""
        fitted = [found for found in self._fitted if found.pipeline in candidates]
        return held_out_sample(self._folded, fitted, strengths, pooling)


def poolings_of(pipelines: Sequence[str]) -> list[Pooling]:
    """Poolings of some pipelines, each once.

    Example:
        >>> poolings_of(["ts(p)", "ts(z)", "cms_op(p)"])
        ['p', 'z']
    """
    return list(dict.fromkeys(PipelineName.parse(text).pooling for text in pipelines))
