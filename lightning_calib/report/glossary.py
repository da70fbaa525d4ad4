"""The words of the report, each explained in one sentence."""

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.calibrators.registry import CALIBRATORS

TERMS: dict[str, str] = {
    "voxel": "One point of an image or volume: a pixel, or its counterpart in 3D.",
    "ensemble": "Several networks trained independently, whose outputs are pooled into one prediction.",
    "confidence": "The probability that the model gives to the class it predicts.",
    "calibrated": "Confidences that match reality: of all voxels with a confidence of 80 %, 80 % are right.",
    "pipeline": "A way of pooling the ensemble, and the calibrator that is fitted on top: calibrator(pooling).",
    "pooling": "How the members become one map: z averages their scores (logits), p averages their probabilities, "
    "p0 takes the first member alone.",
    "translation invariant": "Adding a constant to all scores of a voxel changes nothing, as it should: softmax does "
    "not see such constants.",
    "order preserving": "The ranking of all classes stays as it was in every voxel; so does the segmentation.",
    "argmax preserving": "The predicted class of every voxel stays as it was: the segmentation does not change.",
    "flip": "A voxel whose predicted class the calibrator changed.",
    "repeat": "One random partition of the held-out cases into those for fitting (cal), selecting (val) and "
    "reporting (test).",
    "interval": "Where the value would probably be on other images and other fits: the middle 95 % of a bootstrap that "
    "draws cases with their scores of all repeats, and repeats.",
    "val": "Cases that selected hyperparameters and the recommended pipeline; not used for the reported scores.",
    "test": "Cases that had no say in any fit or choice; all scores in this report are theirs.",
    "Holm": "Holm's correction keeps the chance of a single false verdict in the whole table below 5 %.",
    "regret": "What choosing on val cost on test, against the pipeline that turned out best there.",
    "free energy": "log-sum-exp of a voxel's scores: the part of the scores that softmax does not see.",
    "temperature": "Scores are divided by it: above 1 confidences become softer, below 1 sharper.",
    "certificate": "The solver's own account of a fit: whether it converged, and how far from an optimum it stopped.",
    "gradient": "Largest entry of the objective's gradient where the fit stopped; 0 at an optimum.",
}

_POOLINGS = {"z": "the mean of the members' scores", "p": "the members' mean probability", "p0": "a single member"}
_KEPT = {
    "order": "the order of the classes in every voxel, and so the segmentation, as it is",
    "argmax": "the segmentation as it is",
    None: "nothing: it may change the segmentation",
}


def explain(pipeline: PipelineName) -> str:
    """One sentence on a pipeline.

    Example:
        >>> explain(PipelineName.parse("ts(p)"))
        "Temperature scaling on the members' mean probability."
    """
    return _sentence(f"{pipeline.cls.description} on {_POOLINGS[pipeline.pooling]}")


def calibrators() -> dict[str, str]:
    """What each calibrator does, by name: ours, and those of others that this process has seen."""
    known = (*CALIBRATORS.ours, *CALIBRATORS.registered)
    return {name: _sentence(CALIBRATORS[name].description) for name in known}


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def keeps(preserves: str | None) -> str:
    """What a pipeline keeps, as the end of a sentence that starts with "keeps"."""
    return _KEPT[preserves]
