"""What one pipeline leaves on disk in one repeat; the file that says "done" is written last."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.storage import save_calibrator
from lightning_calib.experiment import layout
from lightning_calib.experiment.rows import (
    CASE_BINS,
    BandRow,
    BinRow,
    CaseBinRow,
    CaseRow,
    ClassBinRow,
    ClassRow,
    CurveRow,
    PooledRow,
    write_cases,
    write_rows,
)
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.flips import FLIP_KINDS
from lightning_calib.functional.overlap import class_counts, dice
from lightning_calib.kit.checksums import CHECKSUMS, changed_files, write_done
from lightning_calib.kit.files import FileError, plain, sha256, write_json
from lightning_calib.kit.typed import read_typed

if TYPE_CHECKING:
    from lightning_calib.tasks.evaluation import Evaluated  # brings Lightning, which reading does without

REMEDY = "delete it and run `calibrate.py run` again"

_OF_FIT = (layout.CALIBRATOR, layout.TRIALS, layout.CURVE)


@dataclass(frozen=True)
class FitRecord:
    """A finished fit, apart from its calibrator (``fit.json``).

    Attributes:
        repeat: number of the repeat.
        pipeline: name such as ``cms_op(p)``.
        settings_hash: hash of everything that the fit depends on.
        hyperparameters: those selected on ``val``.
        val_nll: voxel-pooled NLL on ``val`` of the selected fit.
        identity_val_nll: the same without calibration.
        certificate: the solver's account of the selected fit.
        calibrator_sha256: hash of the calibrator's file; empty in fits of earlier versions.
        status: ``ok`` or ``failed``.
        error: why it failed.
    """

    repeat: int = 0
    pipeline: str = ""
    settings_hash: str = ""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    val_nll: float = float("nan")
    identity_val_nll: float = float("nan")
    certificate: dict[str, Any] = field(default_factory=dict)
    calibrator_sha256: str = ""
    status: str = "ok"
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a fit."""
        return self.status == "ok"


def read_fit(folder: Path) -> FitRecord | None:
    """The fit in a folder; None where there is none."""
    path = folder / layout.FIT
    if not path.is_file():
        return None
    return read_typed(path, FitRecord, REMEDY)


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
    for name in (
        CHECKSUMS,
        layout.EVALUATION,
        layout.FIT,
    ):  # what is half written must not pass for what was there before
        (folder / name).unlink(missing_ok=True)
    described = {key: getattr(record, key) for key in ("pipeline", "hyperparameters", "val_nll")}
    save_calibrator(folder / layout.CALIBRATOR, calibrator, class_names, plain(described))
    write_json(folder / layout.TRIALS, trials)
    write_rows(folder / layout.CURVE, curve, CurveRow)
    facts = vars(record) | {"calibrator_sha256": sha256(folder / layout.CALIBRATOR)}
    write_done(folder, layout.FIT, {"status": facts["status"], "error": facts["error"]} | facts, _OF_FIT)


def write_failed_fit(folder: Path, repeat: int, pipeline: str, settings_hash: str, error: str) -> None:
    """Record that a fit failed; files of an earlier one with other settings are taken away."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CHECKSUMS, layout.EVALUATION, *layout.TABLES, layout.CALIBRATOR, layout.TRIALS, layout.CURVE):
        (folder / name).unlink(missing_ok=True)
    facts = {"repeat": repeat, "pipeline": pipeline, "settings_hash": settings_hash}
    write_json(folder / layout.FIT, {"status": "failed", "error": error, **facts})


def write_evaluation(
    folder: Path, dataset: str, repeat: int, pipeline: str, evaluated: "Evaluated", settings_hash: str
) -> None:
    """Write a pipeline's tables; ``evaluation.json`` comes last and says that they are whole."""
    (folder / layout.EVALUATION).unlink(missing_ok=True)
    write_cases(folder / layout.CASES, list(case_rows(dataset, repeat, pipeline, evaluated)))
    pooled = [PooledRow(repeat, pipeline, key, value) for key, value in evaluated.pooled.items()]
    write_rows(folder / layout.POOLED, pooled, PooledRow)
    write_rows(folder / layout.BINS, _bin_rows(repeat, pipeline, evaluated), BinRow)
    write_rows(folder / layout.BANDS, _band_rows(repeat, pipeline, evaluated), BandRow)
    write_rows(folder / layout.CASE_BINS, _case_bin_rows(repeat, pipeline, evaluated), CaseBinRow)
    write_rows(folder / layout.CLASSES, _class_rows(repeat, pipeline, evaluated), ClassRow)
    write_rows(folder / layout.CLASS_BINS, _class_bin_rows(repeat, pipeline, evaluated), ClassBinRow)
    write_done(folder, layout.EVALUATION, {"settings_hash": settings_hash}, layout.TABLES)


def write_failed_evaluation(folder: Path, settings_hash: str, error: str) -> None:
    """Record that an evaluation failed; the fit stays as it is."""
    for name in layout.TABLES:
        (folder / name).unlink(missing_ok=True)
    failed = {"settings_hash": settings_hash, "error": error}
    write_done(folder, layout.EVALUATION, failed, (), without=layout.TABLES)


def fit_done(folder: Path, settings_hash: str) -> bool:
    """Whether a successful fit with these settings is there, its files as they were written."""
    if changed_files(folder) & {CHECKSUMS, layout.FIT, *_OF_FIT}:
        return False
    record = read_fit(folder)
    if record is None or not record.ok or record.settings_hash != settings_hash:
        return False
    path = folder / layout.CALIBRATOR
    return path.is_file() and record.calibrator_sha256 in ("", sha256(path))


def read_evaluation(folder: Path) -> dict[str, str] | None:
    """``evaluation.json``: the hash of its settings and, where it failed, the error; None where there is none."""
    path = folder / layout.EVALUATION
    facts = read_typed(path, dict[str, str], REMEDY) if path.is_file() else None
    if facts is not None and "settings_hash" not in facts:
        raise layout.ResultsError(f"{path} does not describe an evaluation; {REMEDY}")
    return facts


def evaluation_done(folder: Path, settings_hash: str) -> bool:
    """Whether tables of a fit with these settings are there, as they were written."""
    if changed_files(folder):
        return False
    facts = read_evaluation(folder)
    return facts is not None and facts["settings_hash"] == settings_hash and "error" not in facts


def has_scores(folder: Path) -> bool:
    """Whether tables are there, of whatever settings."""
    facts = read_evaluation(folder)
    return facts is not None and "error" not in facts


def add_timing(folder: Path, **seconds: float) -> None:
    """Note how long a step took; times live in this file alone."""
    write_json(folder / layout.TIMING, read_timing(folder) | seconds, digits=6)


def read_timing(folder: Path) -> dict[str, float]:
    """Seconds of each step; none where the file is missing or damaged, since times are not worth stopping for."""
    try:
        return read_typed(folder / layout.TIMING, dict[str, float])
    except FileError:
        return {}


def case_rows(dataset: str, repeat: int, pipeline: str, evaluated: "Evaluated") -> Iterator[CaseRow]:
    """Scores of a pipeline on the test cases of a repeat."""
    flips = evaluated.statistics.flips
    assert flips is not None  # evaluation has a reference
    voxels = evaluated.statistics.voxels.tolist()
    for number, case in enumerate(evaluated.cases):
        scores = {key: values[number] for key, values in evaluated.scores.items()}
        kinds = {kind: int(getattr(flips, kind)[number]) for kind in FLIP_KINDS}
        yield CaseRow(dataset, repeat, pipeline, case, voxels[number], scores, kinds)


def _filled(table: BinTable, row: int) -> Iterator[tuple[int, int, float, int]]:
    """Number, voxels, confidence and correct voxels of the bins of a table's row that hold any."""
    columns = zip(table.voxels[row].tolist(), table.confidence[row].tolist(), table.correct[row].tolist(), strict=True)
    return ((number, *sums) for number, sums in enumerate(columns) if sums[0])


def _bin_rows(repeat: int, pipeline: str, evaluated: "Evaluated") -> Iterator[BinRow]:
    return (BinRow(repeat, pipeline, *sums) for sums in _filled(evaluated.statistics.pooled().bins, 0))


def _case_bin_rows(repeat: int, pipeline: str, evaluated: "Evaluated") -> Iterator[CaseBinRow]:
    table = evaluated.statistics.bins.coarsen(CASE_BINS)
    for row, case in enumerate(evaluated.cases):
        yield from (CaseBinRow(repeat, pipeline, case, *sums) for sums in _filled(table, row))


def _class_rows(repeat: int, pipeline: str, evaluated: "Evaluated") -> Iterator[ClassRow]:
    counts = class_counts(evaluated.statistics.confusion)  # (cases, C, 3)
    by_case = [dice(counts[:, [label]]) for label in range(counts.shape[1])]
    for label, (own, sums) in enumerate(zip(by_case, counts.sum(dim=0).tolist(), strict=True)):
        hits, predicted, voxels = sums
        held = int((~own.isnan()).sum())
        yield ClassRow(repeat, pipeline, label, float(own.nanmean()), held, voxels, predicted, hits)


def _class_bin_rows(repeat: int, pipeline: str, evaluated: "Evaluated") -> Iterator[ClassBinRow]:
    table = evaluated.statistics.pooled().classwise
    assert table is not None  # evaluation asks for class-wise ECE
    tables = BinTable(*(column[0] for column in table))
    for label in range(len(tables.voxels)):
        yield from (ClassBinRow(repeat, pipeline, label, *sums) for sums in _filled(tables, label))


def _band_rows(repeat: int, pipeline: str, evaluated: "Evaluated") -> Iterator[BandRow]:
    assert evaluated.statistics.bands is not None  # evaluation has distances
    rows = zip(*(column.tolist() for column in evaluated.statistics.bands), strict=True)
    for case, columns in zip(evaluated.cases, rows, strict=True):
        for band, (count, errors, uncertainty, distance) in enumerate(zip(*columns, strict=True)):
            if count:
                yield BandRow(repeat, pipeline, case, band, count, uncertainty, errors, distance)
