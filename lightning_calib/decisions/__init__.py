"""What people do with calibrated probabilities, as plain arithmetic: guaranteed masks, quality, volumes, thresholds."""

from lightning_calib.decisions.control import Control, TooFewGroupsError, least_groups
from lightning_calib.decisions.costs import best_threshold, cost_curve, dice_curve
from lightning_calib.decisions.detection import Detections, detections
from lightning_calib.decisions.quality import QualityModel, StructureFacts, structure_facts
from lightning_calib.decisions.review import aurc, caught, excess_aurc, risk_curve
from lightning_calib.decisions.risks import FALSE, MISSED, RISKS, Risk, case_losses, group_means, register_risk
from lightning_calib.decisions.tables import THRESHOLDS, inside, threshold_table
from lightning_calib.decisions.volumes import VolumeModel, conformal_quantile

__all__ = [
    "FALSE",
    "MISSED",
    "RISKS",
    "THRESHOLDS",
    "Control",
    "Detections",
    "QualityModel",
    "Risk",
    "StructureFacts",
    "TooFewGroupsError",
    "VolumeModel",
    "aurc",
    "best_threshold",
    "case_losses",
    "caught",
    "conformal_quantile",
    "cost_curve",
    "detections",
    "dice_curve",
    "excess_aurc",
    "group_means",
    "inside",
    "least_groups",
    "register_risk",
    "risk_curve",
    "structure_facts",
    "threshold_table",
]
