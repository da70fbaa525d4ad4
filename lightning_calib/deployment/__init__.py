"""Calibrated models for use: folders, one-call loading, application to new data, export, watching for drift."""

from lightning_calib.deployment.ensemble import Calibrated, CalibratedEnsemble
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.guard import Guard, Guarded, guard_weight
from lightning_calib.deployment.regions import CalibratedRegions, RegionEnsemble

__all__ = [
    "Calibrated",
    "CalibratedEnsemble",
    "CalibratedRegions",
    "Deployment",
    "DeploymentError",
    "Guard",
    "Guarded",
    "RegionEnsemble",
    "guard_weight",
]
