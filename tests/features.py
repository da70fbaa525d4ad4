"""Calibrators that look at features, fed with some wherever a test gives them logits alone."""

import math

import torch

from lightning_calib import calibrators

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole part, fill [0, 1] evenly


def features_like(logits, count):
    """Features in [0, 1], ``(B, F, *S)`` or ``(N, F)``, that depend on the shape alone."""
    shape = (logits.shape[0], count, *logits.shape[2:])
    places = torch.arange(math.prod(shape), device=logits.device, dtype=torch.float64)
    return (places * GOLDEN % 1).float().view(shape)


def _feed(calibrator, arguments):
    if len(arguments) > 1:
        return arguments
    (logits,) = arguments
    return logits, features_like(logits, len(calibrator.feature_names)) if logits.ndim > 1 else None


def fed(calibrator):
    """The calibrator; where it looks at features and is called without them, it gets some."""
    if calibrator.looks_at == "features":
        calibrator.register_forward_pre_hook(_feed)
    return calibrator


def build(name, num_classes, spatial_dims=2, **options):
    """A calibrator at the identity that can be called with logits alone."""
    return fed(calibrators.build(name, num_classes, spatial_dims, **options))
