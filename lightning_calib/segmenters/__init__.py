"""Segmentation networks, their losses, schedules and inference."""

from lightning_calib.segmenters.inference import Inference
from lightning_calib.segmenters.losses import LOSSES, LossName, deep_supervision_loss, get_loss
from lightning_calib.segmenters.networks import Network, ResidualEncoderUNet, SmpNetwork
from lightning_calib.segmenters.recipes import AdamWCosine, NnUNetSGD, Recipe
from lightning_calib.segmenters.segmenter import Segmenter

__all__ = [
    "LOSSES",
    "AdamWCosine",
    "Inference",
    "LossName",
    "Network",
    "NnUNetSGD",
    "Recipe",
    "ResidualEncoderUNet",
    "Segmenter",
    "SmpNetwork",
    "deep_supervision_loss",
    "get_loss",
]
