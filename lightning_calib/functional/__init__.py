"""Pure tensor functions: the arithmetic that metrics and calibrators share."""

from lightning_calib.functional.averages import Average, mean_over_images
from lightning_calib.functional.binning import TABLE_BINS, BinTable, bin_index
from lightning_calib.functional.boundary import BANDS, BandTable, DistanceCache, boundary_distance
from lightning_calib.functional.energy import free_energy, free_energy_moments
from lightning_calib.functional.flips import FlipTable, flip_table
from lightning_calib.functional.pooling import POOLINGS, Pooling, pool
from lightning_calib.functional.scores import (
    average_calibration_error,
    boundary_aware_calibration_error,
    brier_score,
    classwise_calibration_error,
    dice_score,
    expected_calibration_error,
    flip_rate,
    maximum_calibration_error,
    mean_iou,
    negative_log_likelihood,
    reliability_table,
    space_error,
)
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.functional.sweep import image_statistics

__all__ = [
    "BANDS",
    "POOLINGS",
    "TABLE_BINS",
    "Average",
    "BandTable",
    "BinTable",
    "DistanceCache",
    "FlipTable",
    "ImageStatistics",
    "Pooling",
    "average_calibration_error",
    "bin_index",
    "boundary_aware_calibration_error",
    "boundary_distance",
    "brier_score",
    "classwise_calibration_error",
    "dice_score",
    "expected_calibration_error",
    "flip_rate",
    "flip_table",
    "free_energy",
    "free_energy_moments",
    "image_statistics",
    "maximum_calibration_error",
    "mean_iou",
    "mean_over_images",
    "negative_log_likelihood",
    "pool",
    "reliability_table",
    "space_error",
]
