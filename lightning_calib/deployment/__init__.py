"""Calibrated models for use: folders, one-call loading, application to new data, export, watching for drift."""

from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.result import Calibrated

__all__ = ["Calibrated", "CalibratedEnsemble", "Deployment", "DeploymentError"]
