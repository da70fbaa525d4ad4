"""Calibrated models for use: folders, one-call loading, application to new data, export, watching for drift."""

from lightning_calib.deployment.ensemble import Calibrated, CalibratedEnsemble
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.guard import Guard, Guarded, guard_weight

__all__ = ["Calibrated", "CalibratedEnsemble", "Deployment", "DeploymentError", "Guard", "Guarded", "guard_weight"]
