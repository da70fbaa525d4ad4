"""Where each file of a calibration run lies, and how its JSON files are written."""

import json
import math
from pathlib import Path
from typing import Any

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.kit.files import write_text

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


class ResultsError(ValueError):
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
    return repeat_folder(root, repeat) / f"{name.calibrator}-{name.pooling}"


def plain(value: Any, digits: int | None = None) -> Any:  # noqa: ANN401
    """The value as JSON can hold it: NaN and infinities become null, tuples lists.

    Args:
        value: nested dictionaries, sequences and scalars.
        digits: significant digits to keep of floats; all by default.

    Example:
        >>> plain({"a": (1.23456, float("nan"))}, digits=3)
        {'a': [1.23, None]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, digits) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(value) if digits is None else float(f"{value:.{digits}g}")
    return value


def write_json(path: Path, value: Any, digits: int | None = None) -> None:  # noqa: ANN401
    """Write JSON in one step, keys in the given order; equal values give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(plain(value, digits), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Read JSON; a damaged file is refused by name."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise ResultsError(f"{path} is not JSON ({problem}); delete it and run `calibrate.py run` again") from problem
