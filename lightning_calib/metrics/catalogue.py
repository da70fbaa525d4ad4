"""Our scores: how each is called, shown and computed; ``SCORES`` finds them by their keys."""

from functools import partial

from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.metrics import decisions
from lightning_calib.metrics.score import Score, overlap, plain

NLL = Score(
    key="nll",
    label="NLL",
    title="negative log-likelihood",
    explanation="How surprised the model is by the true labels; it punishes confident mistakes most.",
    better="lower",
    digits=3,
    headline=True,
    compared=True,
    arithmetic=partial(plain, ImageStatistics.negative_log_likelihood),
)
DICE = Score(
    key="dice",
    label="Dice",
    title="Dice score",
    explanation="Overlap of the predicted and the true regions, averaged over the classes of an image.",
    better="higher",
    percent=True,
    decimals=1,
    headline=True,
    compared=True,
    arithmetic=partial(overlap, ImageStatistics.dice_score),
)
ECE = Score(
    key="ece",
    label="ECE",
    title="expected calibration error",
    explanation="Typical gap between how confident the model says it is and how often it is right; "
    "easy voxels dominate it, since they are many.",
    better="lower",
    headline=True,
    compared=True,
    arithmetic=partial(plain, ImageStatistics.expected_calibration_error),
)
BA_ECE = Score(
    key="ba_ece",
    label="BA-ECE",
    title="boundary-aware calibration error",
    explanation="The same kind of gap taken in bands of distance to the true boundary; the band at the boundary "
    "counts most.",
    better="lower",
    headline=True,
    compared=True,
    needs=("bands",),
    arithmetic=partial(plain, ImageStatistics.boundary_aware_calibration_error),
)
ACE = Score(
    key="ace",
    label="ACE",
    title="average calibration error",
    explanation="The gap averaged over confidence levels, so that rare, uncertain voxels count as much as the many "
    "easy ones.",
    better="lower",
    pooled=True,
    headline=True,
    arithmetic=partial(plain, ImageStatistics.average_calibration_error),
)
BRIER = Score(
    key="brier",
    label="Brier",
    title="Brier score",
    explanation="Squared distance between the predicted probabilities and the truth; mixes calibration with accuracy.",
    better="lower",
    digits=3,
    headline=True,
    arithmetic=partial(plain, ImageStatistics.brier_score),
)
FLIP = Score(
    key="flip",
    label="Flips",
    title="flip rate",
    explanation="Share of voxels whose predicted class the calibrator changed: 0 means that the segmentation is "
    "untouched.",
    better="lower",
    percent=True,
    decimals=1,
    headline=True,
    needs=("flips",),
    arithmetic=partial(plain, ImageStatistics.flip_rate),
)
MIOU = Score(
    key="miou",
    label="mIoU",
    title="mean intersection over union",
    explanation="Overlap of the predicted and the true regions of each class over all images together, averaged over "
    "classes; street-scene benchmarks rank by it.",
    better="higher",
    percent=True,
    decimals=1,
    pooled=True,
    arithmetic=partial(overlap, ImageStatistics.mean_iou),
)
MCE = Score(
    key="mce",
    label="MCE",
    title="maximum calibration error",
    explanation="The largest gap at any confidence level; a level that few voxels reach can make it large by chance.",
    better="lower",
    pooled=True,
    arithmetic=partial(plain, ImageStatistics.maximum_calibration_error),
)
CLASSWISE_ECE = Score(
    key="classwise_ece",
    label="Class-wise ECE",
    title="class-wise expected calibration error",
    explanation="The gap taken for the probability of every class, not only of the top one, averaged over classes.",
    better="lower",
    needs=("classwise",),
    arithmetic=partial(plain, ImageStatistics.classwise_calibration_error),
)
SPACE = Score(
    key="space",
    label="SPACE",
    title="smoothed calibration error",
    explanation="Local disagreement between uncertainty and error, both smoothed over neighbouring voxels.",
    better="lower",
    needs=("smoothed",),
    arithmetic=partial(plain, ImageStatistics.space_error),
)
FREE_ENERGY_SPREAD = Score(
    key="free_energy_spread",
    label="Free-energy spread",
    title="spread of the free energy",
    explanation="How much the offset of the pooled logits, which the softmax does not see, varies within an image; "
    "where it does, calibrators that are not translation invariant read noise.",
    better=None,
    of_input=True,
    metric=decisions.FreeEnergySpread,
)
