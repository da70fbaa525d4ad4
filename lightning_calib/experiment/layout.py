"""Where each file of a calibration run lies."""

from pathlib import Path

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.kit.files import FileError

RESULTS_VERSION = 1

SETTINGS, SUMMARY, TIMING, GROUPS = "settings.json", "summary.json", "timing.json", "groups.json"
CASES, BINS, BANDS = "cases.csv", "bins.csv", "bands.csv"
FIT, TRIALS, CURVE, CALIBRATOR, EVALUATION = (
    "fit.json",
    "trials.json",
    "curve.csv",
    "calibrator.safetensors",
    "evaluation.json",
)


class ResultsError(FileError):
    """A folder does not hold the results that it is taken for."""


def repeat_folder(root: Path, repeat: int) -> Path:
    """Folder of a repeat."""
    return root / "repeats" / str(repeat)


def split_path(root: Path, repeat: int) -> Path:
    """File with the cases of a repeat's three parts."""
    return repeat_folder(root, repeat) / "split.json"


def task_folder(root: Path, repeat: int, pipeline: PipelineName | str) -> Path:
    """Folder of one pipeline in one repeat.

    Example:
        >>> task_folder(Path("calibration"), 0, "cms_op(p)").as_posix()
        'calibration/repeats/0/cms_op-p'
    """
    name = PipelineName.parse(pipeline) if isinstance(pipeline, str) else pipeline
    return repeat_folder(root, repeat) / name.slug
