"""Fits on all voxels of groups that each count the same."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lightning_calib.calibrators import Calibrator, Identity, LinearCalibrator, PipelineName, build
from lightning_calib.experiment.selection.crossfit import CrossFitter, temperature_of
from lightning_calib.experiment.selection.folds import group_weights
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.stored import CaseStream
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import NewtonSolver
from lightning_calib.solvers.coordinates import set_temperature
from lightning_calib.solvers.objective import EPS
from lightning_calib.solvers.sandwich import TemperatureInterval, temperature_derivatives, temperature_interval
from lightning_calib.solvers.stream import KeptWalk


class GroupFitter:
    """Fits whose objective is the mean over groups, then cases, then voxels, of the NLL.

    Args:
        cases: where the cases are.
        case_ids: those to use.
        groups: group of each.
    """

    def __init__(self, cases: StoredCases, case_ids: Sequence[str], groups: Mapping[str, str]) -> None:
        self.cases = cases
        self.case_ids = [case_id for case_id in case_ids if len(cases.counted(case_id))]
        self.weights = group_weights(self.case_ids, groups)
        self.num_groups = len({groups[case_id] for case_id in self.case_ids})

    def __call__(self, pipeline: str, strength: float) -> tuple[Calibrator, dict[str, Any]]:
        """A candidate and its certificate.

        Args:
            pipeline: the candidate.
            strength: of the ridge towards temperature scaling, to be divided by the number of groups; at infinity it
                is temperature scaling itself, and that is the identity.
        """
        name = PipelineName.parse(pipeline)
        if name.calibrator == "identity" or (name.calibrator == "ts" and math.isinf(strength)):
            manifest = self.cases.store.manifest
            return Identity(manifest.num_classes, manifest.spatial_dims), {}
        if name.calibrator == "ts":
            return self._solved("ts", name.pooling, strength, 1.0)
        scaling, certificate = self._solved("ts", name.pooling, 0.0, 1.0)
        if math.isinf(strength):
            return scaling, certificate
        return self._solved(name.calibrator, name.pooling, strength, temperature_of(scaling))

    def _solved(
        self, kind: str, pooling: Pooling, strength: float, temperature: float
    ) -> tuple[LinearCalibrator, dict[str, Any]]:
        """A fit from its centre, a temperature."""
        calibrator, centre = self._at(kind, temperature), self._at(kind, temperature)
        cases = StoredCases(self.cases.store, pooling, self.cases.outside, self.cases.cache.enabled)
        solver = NewtonSolver(
            calibrator,
            lam=0.0,
            mu=0.0,
            eps=max(strength / self.num_groups, EPS),
            ignore_index=cases.ignore_index,
            walk=KeptWalk(calibrator, cases.ignore_index),
            case_weights=self.weights,
            centre=centre,
        )
        return calibrator, solver.solve(CaseStream(cases, self.case_ids, calibrator.feature_names)).to_dict()

    def _at(self, kind: str, temperature: float) -> LinearCalibrator:
        manifest = self.cases.store.manifest
        calibrator = build(kind, manifest.num_classes, manifest.spatial_dims)
        assert isinstance(calibrator, LinearCalibrator)
        set_temperature(calibrator, temperature)
        return calibrator


def sample_temperature(fitter: CrossFitter, pooling: Pooling) -> TemperatureInterval:
    """Temperature of all groups together, fitted on the sample of voxels, and how sure it is."""
    folds = fitter.folds(pooling)
    calibrator = build("ts", fitter.num_classes)
    assert isinstance(calibrator, LinearCalibrator)
    set_temperature(calibrator, float(np.exp(np.mean(np.log(fitter.temperatures(pooling))))))
    NewtonSolver(calibrator, case_weights=fitter.voxels.weights).solve([fold.batch for fold in folds])
    temperature = temperature_of(calibrator)
    sums = torch.zeros(2, len(fitter.voxels.groups), dtype=torch.float64)
    for fold in folds:
        derivatives = torch.stack(temperature_derivatives(fold.logits[0], fold.target[0], temperature))
        sums.index_add_(1, fold.group, derivatives * fold.weight)
    return temperature_interval(temperature, sums[0], sums[1])
