"""torchmetrics classes: the state is sums, the arithmetic comes from ``functional``."""

from lightning_calib.metrics.calibration import (
    AverageCalibrationError,
    ClasswiseCalibrationError,
    ExpectedCalibrationError,
    MaximumCalibrationError,
    ReliabilityDiagram,
)
from lightning_calib.metrics.decisions import FlipRate, FreeEnergySpread
from lightning_calib.metrics.plots import draw_classwise_reliability, draw_reliability
from lightning_calib.metrics.score import SCORES, Score, main_scores, register_score, score_collection
from lightning_calib.metrics.segmentation import BrierScore, DiceScore, MeanIoU, NegativeLogLikelihood
from lightning_calib.metrics.spatial import SPACE, BoundaryAwareCalibrationError
from lightning_calib.metrics.statistics import StatisticsMetric

__all__ = [
    "SCORES",
    "SPACE",
    "AverageCalibrationError",
    "BoundaryAwareCalibrationError",
    "BrierScore",
    "ClasswiseCalibrationError",
    "DiceScore",
    "ExpectedCalibrationError",
    "FlipRate",
    "FreeEnergySpread",
    "MaximumCalibrationError",
    "MeanIoU",
    "NegativeLogLikelihood",
    "ReliabilityDiagram",
    "Score",
    "StatisticsMetric",
    "draw_classwise_reliability",
    "draw_reliability",
    "main_scores",
    "register_score",
    "score_collection",
]
