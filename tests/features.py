"""Calibrators that look at features, fed with some wherever a test gives them logits alone."""

import torch

from lightning_calib import calibrators


def features_like(logits, count):
    """Features in [0, 1], ``(B, F, *S)`` or ``(N, F)``, that depend on the shape alone."""
    shape = (logits.shape[0], count, *logits.shape[2:])
    values = torch.rand(shape, generator=torch.Generator().manual_seed(count), dtype=torch.float32, device="cpu")
    return values.to(logits.device)


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
