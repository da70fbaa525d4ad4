"""The scores that calibrated predictions are judged by, under their short names."""

from torchmetrics import MetricCollection

from lightning_calib.metrics import (
    SPACE,
    AverageCalibrationError,
    BoundaryAwareCalibrationError,
    BrierScore,
    ClasswiseCalibrationError,
    DiceScore,
    ExpectedCalibrationError,
    FlipRate,
    MaximumCalibrationError,
    MeanIoU,
    NegativeLogLikelihood,
)


def calibration_scores(ignore_index: int | None, background: int | None) -> MetricCollection:
    """All metrics that take ``log_probs`` and ``target``.

    ``update(log_probs, target, case_ids=..., reference=pooled logits, distance=boundary distances)``.

    Args:
        ignore_index: label of voxels that count nowhere.
        background: class that Dice and IoU leave out; None to average over all classes.

    Example:
        >>> sorted(calibration_scores(None, None))
        ['ace', 'ba_ece', 'brier', 'classwise_ece', 'dice', 'ece', 'flip', 'mce', 'miou', 'nll', 'space']
    """
    classes = (background is None, background or 0)
    return MetricCollection(
        {
            "nll": NegativeLogLikelihood(ignore_index=ignore_index),
            "dice": DiceScore(*classes, ignore_index=ignore_index),
            "miou": MeanIoU(*classes, ignore_index=ignore_index),
            "ece": ExpectedCalibrationError(ignore_index=ignore_index),
            "ace": AverageCalibrationError(ignore_index=ignore_index),
            "mce": MaximumCalibrationError(ignore_index=ignore_index),
            "ba_ece": BoundaryAwareCalibrationError(ignore_index=ignore_index),
            "brier": BrierScore(ignore_index=ignore_index),
            "flip": FlipRate(ignore_index=ignore_index),
            "classwise_ece": ClasswiseCalibrationError(ignore_index=ignore_index),
            "space": SPACE(ignore_index=ignore_index),
        }
    )
