"""Where each file of an experiment lies."""

from pathlib import Path

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.kit.files import FileError

RESULTS_VERSION = 1

SETTINGS, SUMMARY, TIMING, GROUPS = "settings.json", "summary.json", "timing.json", "groups.json"
CASES, POOLED, BINS, BANDS = "cases.csv", "pooled.csv", "bins.csv", "bands.csv"
CASE_BINS, CLASSES, CLASS_BINS = "case_bins.csv", "classes.csv", "class_bins.csv"
TABLES = (CASES, POOLED, BINS, BANDS, CASE_BINS, CLASSES, CLASS_BINS)  # of an evaluation
FIT, TRIALS, CURVE, CALIBRATOR, EVALUATION, JOURNAL = (
    "fit.json",
    "trials.json",
    "curve.csv",
    "calibrator.safetensors",
    "evaluation.json",
    "journal.jsonl",
)
SELECTION = "selection.json"
RUNS = "regions.json"  # in place of the settings where every region has an experiment of its own


class ResultsError(FileError):
    """A folder does not hold the results that it is taken for."""


def repeat_folder(root: Path, repeat: int) -> Path:
    """Folder of a repeat."""
    return root / "repeats" / str(repeat)


def split_path(root: Path, repeat: int) -> Path:
    """File with the cases of a repeat's three parts."""
    return repeat_folder(root, repeat) / "split.json"


def job_folder(root: Path, repeat: int, pipeline: PipelineName | str) -> Path:
    """Folder of one pipeline in one repeat.

    Example:
        >>> job_folder(Path("calibration"), 0, "cms_op(p)").as_posix()
        'calibration/repeats/0/cms_op-p'
    """
    name = PipelineName.parse(pipeline) if isinstance(pipeline, str) else pipeline
    return repeat_folder(root, repeat) / name.slug


def selection_folder(root: Path, repeat: int | None) -> Path:
    """Folder of the selection by groups of a repeat, or of all cases.

    Example:
        >>> selection_folder(Path("calibration"), 0).as_posix(), selection_folder(Path("calibration"), None).as_posix()
        ('calibration/repeats/0/selection', 'calibration/selection')
    """
    return (root if repeat is None else repeat_folder(root, repeat)) / "selection"


def experiment_folder(folder: Path) -> Path:
    """The folder of an experiment: the one named, or ``calibration`` in it where that is the folder of a run."""
    inside = folder / "calibration"
    return inside if not (folder / SETTINGS).is_file() and (inside / SETTINGS).is_file() else folder


def find_runs(folder: Path) -> Path | None:
    """The folder with experiments on regions: the one named, or ``calibration`` in it; None where there are none."""
    places = (folder, folder / "calibration")
    return next((place for place in places if (place / RUNS).is_file()), None)
