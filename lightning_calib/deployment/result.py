"""What a calibrated ensemble says about an image."""

from typing import NamedTuple

from torch import Tensor

from lightning_calib.calibrators import Calibrator
from lightning_calib.functional.experts import winning_class


class Calibrated(NamedTuple):
    """Calibrated output of a batch.

    Attributes:
        log_probs: ``(B, C, *S)``, normalised.
        mask: predicted class ``(B, *S)``, int64. Where the calibrator preserves the argmax it is that of the pooled
            scores themselves, never taken from rounded probabilities.
        confidence: largest probability ``(B, *S)``.
    """

    log_probs: Tensor
    mask: Tensor
    confidence: Tensor


def calibrated(pooled: Tensor, calibrator: Calibrator) -> Calibrated:
    """Calibrate pooled scores ``(B, C, *S)`` and take mask and confidence.

    Args:
        pooled: the members' scores as the pipeline pools them.
        calibrator: fitted on such scores.

    Example:
        >>> import torch
        >>> from lightning_calib.calibrators import build
        >>> calibrated(torch.tensor([[0.0, 2.0, 1.0]]), build("cms_op", 3)).mask
        tensor([1])
    """
    log_probs: Tensor = calibrator(pooled)
    mask = winning_class(log_probs if calibrator.preserves is None else pooled)
    return Calibrated(log_probs, mask, log_probs.amax(dim=1).exp().clamp(max=1))
