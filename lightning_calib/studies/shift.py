"""Calibrators fitted on clean images, judged without refitting on outputs for changed ones (Appendix H)."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning_calib.datasets.corruptions import CORRUPTION
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.evaluation import Facts, evaluate
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.summary import join_tables, matched_comparisons
from lightning_calib.functional.boundary import BANDS
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import digest, read_json, sha256, write_json
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.store import OutputStore
from lightning_calib.studies.base import Pipelines, Study, StudyError, read_cases
from lightning_calib.studies.scores import ScoreRow, change_rows, score_rows

CLEAN = "clean"
NAME = "shift"
_PREFIX = "outputs-"


@dataclass(frozen=True)
class ShiftJob:
    """Pipelines of one pooling on the test cases of one repeat, changed in one way."""

    images: str
    outputs: str
    repeat: int
    pooling: Pooling
    pipelines: tuple[str, ...]


def shifted_stores(clean: Path) -> dict[str, Path]:
    """Stores beside the clean one by what was done to their images: ``outputs-mild`` is ``mild``."""
    found = sorted(path for path in clean.resolve().parent.glob(f"{_PREFIX}*") if (path / MANIFEST).is_file())
    return {path.name.removeprefix(_PREFIX): path for path in found}


def run_shift(study: Study, stores: Mapping[str, Path] | None = None, pipelines: Pipelines | None = None) -> Any:  # noqa: ANN401
    """Evaluate the run's calibrators on other outputs of the same cases.

    Args:
        study: where to read and write.
        stores: output stores by a name for their images; None takes all beside the run's own.
        pipelines: which to evaluate; None for all of the run.

    Returns:
        ``study.json``.
    """
    names = study.names(pipelines)
    found = dict(stores or shifted_stores(study.store.path))
    if not found:
        raise StudyError(
            f"there are no stores of changed images beside {study.store.path}; write them with "
            "`train.py predict --corruption mild` and `--corruption strong`, or name them with --stores"
        )
    for images, path in found.items():
        _refuse_other_cases(study, images, OutputStore(path))
        _prepare(study, images, path, names)
    jobs = [job for job in _jobs(study, found, names) if _pending(study, job)]
    study.do(jobs, partial(shift_job, study), lambda job: f"{job.images}, {job.pooling}, repeat {job.repeat}")
    return _summarize(study, found, names)


def shift_job(study: Study, job: ShiftJob) -> None:
    """Score the pipelines of a job in one pass over its cases, and write their tables."""
    store = OutputStore(job.outputs)
    cases = study.cases(job.pooling, store)
    facts = Facts(store.manifest.dataset, cases.ignore_index, store.manifest.background)
    calibrators = {name: study.calibrator(job.repeat, name) for name in job.pipelines}
    evaluated = evaluate(read_cases(cases, study.results.test_cases(job.repeat)), calibrators, facts, job.repeat)
    for name in job.pipelines:
        folder = layout.job_folder(study.folder / job.images, job.repeat, name)
        folder.mkdir(parents=True, exist_ok=True)
        records.write_evaluation(folder, evaluated[name], _hash(study, job, name))


def _refuse_other_cases(study: Study, images: str, store: OutputStore) -> None:
    """Refuse a store of other cases, classes or networks."""
    own, other = study.store.manifest, store.manifest
    tested = {case for repeat in study.results.repeats for case in study.results.test_cases(repeat)}
    if missing := sorted(tested - set(store.case_ids)):
        raise StudyError(
            f"{store.path} ({images}) lacks {len(missing)} test cases of the run: {', '.join(missing[:5])}"
        )
    if own.class_names != other.class_names:
        raise StudyError(f"{store.path} ({images}) has the classes {other.class_names}, the run {own.class_names}")
    if own.members != other.members:
        raise StudyError(
            f"{store.path} ({images}) was predicted by other networks than {study.store.path}: predict both with the "
            "same checkpoints"
        )


def _prepare(study: Study, images: str, path: Path, names: Sequence[str]) -> None:
    """Make a folder of results as the run's own is, with the run's splits."""
    folder, results = study.folder / images, study.results
    for repeat in results.repeats:
        write_json(layout.split_path(folder, repeat), results.split(repeat))
    if (results.folder / layout.GROUPS).is_file():
        shutil.copyfile(results.folder / layout.GROUPS, folder / layout.GROUPS)
    write_json(folder / layout.SETTINGS, results.settings | {"pipelines": list(names), "outputs": str(path)})


def _jobs(study: Study, stores: Mapping[str, Path], names: Sequence[str]) -> list[ShiftJob]:
    return [
        ShiftJob(images, str(path), repeat, pooling, group)
        for images, path in stores.items()
        for repeat in study.results.repeats
        for pooling, group in study.by_pooling(names, repeat).items()
    ]


def _pending(study: Study, job: ShiftJob) -> bool:
    folders = {name: layout.job_folder(study.folder / job.images, job.repeat, name) for name in job.pipelines}
    return not all(records.evaluation_done(folders[name], _hash(study, job, name)) for name in job.pipelines)


def _hash(study: Study, job: ShiftJob, name: str) -> str:
    """Hash of everything that the scores depend on."""
    return digest(
        {
            "outputs": sha256(Path(job.outputs) / MANIFEST),
            "calibrator": sha256(study.results.job_folder(job.repeat, name) / layout.CALIBRATOR),
            "test": study.results.test_cases(job.repeat),
            "outside": study.results.settings.get("outside"),
            "bands": str(BANDS),
        }
    )


def _summarize(study: Study, stores: Mapping[str, Path], names: Sequence[str]) -> dict[str, Any]:
    rows, changes = score_rows(CLEAN, study.results, names), list[ScoreRow]()
    comparisons: dict[str, Any] = {}
    for images in stores:
        join_tables(study.folder / images)
        results = Results(study.folder / images)
        rows += score_rows(images, results, names)
        changes += change_rows(images, study.results, results, names)
        comparisons[images] = [asdict(comparison) for comparison in matched_comparisons(results)]
    study.save("scores.csv", rows, ScoreRow)
    study.save("degradation.csv", changes, ScoreRow)
    return study.write(
        {
            "images": {images: str(path) for images, path in stores.items()},
            "corruptions": {images: _corruption(path) for images, path in stores.items()},
            "pipelines": list(names),
            "comparisons": comparisons,
        }
    )


def _corruption(store: Path) -> dict[str, Any] | None:
    """What `train.py predict` noted about the images; None for stores of other origin."""
    path = store / CORRUPTION
    return read_json(path) if path.is_file() else None
