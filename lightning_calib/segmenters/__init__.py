"""Segmentation networks, their losses, schedules and inference."""

from lightning_calib.segmenters.inference import Inference
from lightning_calib.segmenters.losses import LOSSES, LossName, deep_supervision_loss, get_loss
from lightning_calib.segmenters.members import Members, build_network
from lightning_calib.segmenters.networks import Network, ResidualEncoderUNet, SmpNetwork
from lightning_calib.segmenters.recipes import AdamWCosine, NnUNetSGD, Recipe
from lightning_calib.segmenters.segmenter import Segmenter

__all__ = [
    "LOSSES",
    "AdamWCosine",
    "Inference",
    "LossName",
    "Members",
    "Network",
    "NnUNetSGD",
    "Recipe",
    "ResidualEncoderUNet",
    "Segmenter",
    "SmpNetwork",
    "build_network",
    "deep_supervision_loss",
    "get_loss",
]
