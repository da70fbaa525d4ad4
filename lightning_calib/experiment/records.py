"""What one pipeline leaves on disk in one repeat; the file that says "done" is written last."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.storage import save_calibrator
from lightning_calib.experiment import layout
from lightning_calib.experiment.evaluation import Evaluated
from lightning_calib.experiment.rows import BandRow, BinRow, CaseRow, CurveRow, write_rows
from lightning_calib.kit.files import plain, read_json, write_json


@dataclass(frozen=True)
class FitRecord:
    """A finished fit, apart from its calibrator.

    Attributes:
        repeat: number of the repeat.
        pipeline: name such as ``cms_op(p)``.
        settings_hash: hash of everything that the fit depends on.
        hyperparameters: those selected on ``val``.
        val_nll: voxel-pooled NLL on ``val`` of the selected fit.
        identity_val_nll: the same without calibration.
        certificate: the solver's account of the selected fit.
    """

    repeat: int
    pipeline: str
    settings_hash: str
    hyperparameters: dict[str, Any]
    val_nll: float
    identity_val_nll: float
    certificate: dict[str, Any] = field(default_factory=dict)


def write_fit(
    folder: Path,
    record: FitRecord,
    calibrator: Calibrator,
    trials: list[dict[str, Any]],
    curve: Iterable[CurveRow],
    class_names: list[str],
) -> None:
    """Write a fit's files; ``fit.json`` comes last and says that the others are whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (layout.EVALUATION, layout.FIT):  # what is half written must not pass for what was there before
        (folder / name).unlink(missing_ok=True)
    facts = {"status": "ok", "error": None, **vars(record)}
    described = {key: facts[key] for key in ("pipeline", "hyperparameters", "val_nll")}
    save_calibrator(folder / layout.CALIBRATOR, calibrator, class_names, plain(described))
    write_json(folder / layout.TRIALS, trials)
    write_rows(folder / layout.CURVE, curve, CurveRow)
    write_json(folder / layout.FIT, facts)


def write_failure(folder: Path, repeat: int, pipeline: str, settings_hash: str, error: str) -> None:
    """Record that a pipeline failed; files of an earlier success are taken away."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (layout.EVALUATION, layout.CASES, layout.BINS, layout.BANDS, layout.CALIBRATOR, layout.TRIALS):
        (folder / name).unlink(missing_ok=True)
    facts = {
        "status": "failed",
        "error": error,
        "repeat": repeat,
        "pipeline": pipeline,
        "settings_hash": settings_hash,
    }
    write_json(folder / layout.FIT, facts)


def write_evaluation(folder: Path, evaluated: Evaluated, settings_hash: str) -> None:
    """Write a pipeline's tables; ``evaluation.json`` comes last and says that they are whole."""
    (folder / layout.EVALUATION).unlink(missing_ok=True)
    write_rows(folder / layout.CASES, evaluated.cases, CaseRow)
    write_rows(folder / layout.BINS, evaluated.bins, BinRow)
    write_rows(folder / layout.BANDS, evaluated.bands, BandRow)
    write_json(folder / layout.EVALUATION, {"settings_hash": settings_hash})


def fit_done(folder: Path, settings_hash: str) -> bool:
    """Whether a successful fit with these settings is there."""
    path = folder / layout.FIT
    if not path.is_file():
        return False
    facts = read_json(path)
    return bool(facts["status"] == "ok" and facts["settings_hash"] == settings_hash)


def evaluation_done(folder: Path, settings_hash: str) -> bool:
    """Whether tables of a fit with these settings are there."""
    path = folder / layout.EVALUATION
    return path.is_file() and read_json(path)["settings_hash"] == settings_hash


def add_timing(folder: Path, **seconds: float) -> None:
    """Note how long a step took; times live in this file alone."""
    path = folder / layout.TIMING
    known = read_json(path) if path.is_file() else {}
    write_json(path, known | seconds, digits=6)
