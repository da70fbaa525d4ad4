"""Calibrated models for use: folders, one-call loading, application to new data, export, watching for drift."""

from lightning_calib.deployment.ensemble import Calibrated, CalibratedEnsemble
from lightning_calib.deployment.folder import Deployment, DeploymentError

__all__ = ["Calibrated", "CalibratedEnsemble", "Deployment", "DeploymentError"]
