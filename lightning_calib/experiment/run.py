"""The paper's protocol: for every repeat and pipeline search, fit on `cal`, select on `val`, evaluate on `test`.

Each repeat and pipeline leaves its own files, and is skipped when they are there and were made with the same
settings: a run that was interrupted goes on where it stopped, and ends with the same bytes as one that was not.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning_calib.calibrators.storage import load_calibrator
from lightning_calib.executors.base import Executor
from lightning_calib.executors.local import LocalExecutor
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.evaluation import Facts, TestCase, evaluate
from lightning_calib.experiment.plan import Protocol, Task
from lightning_calib.experiment.search import search
from lightning_calib.experiment.summary import write_summary
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import read_json, write_json
from lightning_calib.kit.progress import Display
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.tasks.calibration import MAX_EPOCHS


@dataclass(frozen=True)
class EvaluationJob:
    """All pipelines of one pooling in one repeat: their test cases are read once."""

    repeat: int
    pooling: Pooling
    pipelines: tuple[str, ...]

    @property
    def tasks(self) -> list[Task]:
        """One task a pipeline."""
        return [Task(self.repeat, name) for name in self.pipelines]


def run_protocol(
    protocol: Protocol,
    folder: str | Path,
    workers: int = 1,
    display: bool = True,
    start: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run or go on with a protocol, and summarise it.

    Args:
        protocol: what to do.
        folder: where the results go, usually ``runs/<name>/calibration``.
        workers: processes at a time; 0 does everything in this one. Results do not depend on it.
        display: show progress.
        start: called once in every worker process, to set up logging and the like.

    Returns:
        The summary, as in ``summary.json``.
    """
    root, began = Path(folder), time.perf_counter()
    prepare(protocol, root)
    shown = partial(Display, workers=workers, quiet=not display)
    with LocalExecutor(workers, protocol.threads, start) as processes:
        fit_all(protocol, root, processes, shown)
        evaluate_all(protocol, root, processes, shown)
    summary = write_summary(root)
    records.add_timing(root, run=time.perf_counter() - began)
    return summary


def prepare(protocol: Protocol, root: Path) -> None:
    """Write settings and splits; take away what an interrupted run left half written."""
    for path in [*root.glob(".*.part"), *(root / "repeats").rglob(".*")]:
        path.unlink(missing_ok=True)
    for repeat in range(protocol.repeats):
        split = protocol.split(repeat)
        facts = {"cal": split.cal, "val": split.val, "test": split.test}
        write_json(layout.split_path(root, repeat), facts)
    if protocol.group_aware:
        write_json(root / layout.GROUPS, protocol.store.groups)
    else:
        (root / layout.GROUPS).unlink(missing_ok=True)
    write_json(root / layout.SETTINGS, protocol.describe())


def fit_all(protocol: Protocol, root: Path, processes: Executor, display: Callable[..., Display]) -> None:
    """Fit every pipeline in every repeat that has no fit with these settings."""
    tasks = [task for task in protocol.tasks if not records.fit_done(_folder(root, task), protocol.fit_hash(task))]
    with display(task.name.calibrator for task in tasks) as shown:
        for outcome in processes.run(_longest_first(tasks), partial(fit_task, protocol, root)):
            task, error = outcome.job, outcome.error
            if error is not None:
                _fail(root, protocol, task, error)
            shown.done(task.name.calibrator, _told("fitted", task, error), _seconds(root, task, "fit"))


def fit_task(protocol: Protocol, root: Path, task: Task) -> None:
    """Search and fit one pipeline in one repeat, and write what came out."""
    started = time.perf_counter()
    data = protocol.data(task.repeat, task.name.pooling)
    found = search(
        task.name,
        data,
        trials=protocol.trials_of(task),
        seed=task.seed(protocol.seed),
        solver=protocol.solver,
        max_epochs=protocol.lts_epochs if task.local else MAX_EPOCHS,
    )
    record = records.FitRecord(
        repeat=task.repeat,
        pipeline=task.pipeline,
        settings_hash=protocol.fit_hash(task),
        hyperparameters=found.hyperparameters,
        val_nll=found.val_nll,
        identity_val_nll=found.identity_val_nll,
        certificate=found.certificate,
    )
    folder = _folder(root, task)
    records.write_fit(folder, record, found.calibrator, found.trials, found.curve, data.class_names)
    records.add_timing(folder, fit=time.perf_counter() - started)


def evaluate_all(protocol: Protocol, root: Path, processes: Executor, display: Callable[..., Display]) -> None:
    """Evaluate every fit that has no scores yet."""
    jobs = pending_evaluations(protocol, root)
    failed: list[EvaluationJob] = []
    with display(f"evaluation {job.pooling}" for job in jobs) as shown:
        for outcome in processes.run(jobs, partial(evaluate_job, protocol, root)):
            job = outcome.job
            if outcome.error is not None:
                failed.append(job)
            seconds = max(_seconds(root, task, "evaluation_pass") for task in job.tasks)
            text = f"evaluated {len(job.pipelines)} pipelines on {job.pooling}, repeat {job.repeat}"
            shown.done(f"evaluation {job.pooling}", text, seconds)
    for job in failed:  # the processes are free now
        _one_by_one(protocol, root, job, processes)


def pending_evaluations(protocol: Protocol, root: Path) -> list[EvaluationJob]:
    """Repeats and poolings with fits that have no scores yet."""
    groups: dict[tuple[int, Pooling], list[str]] = {}
    for task in protocol.tasks:
        folder = _folder(root, task)
        fitted = records.fit_done(folder, protocol.fit_hash(task))
        if fitted and not records.evaluation_done(folder, protocol.evaluation_hash(task)):
            groups.setdefault((task.repeat, task.name.pooling), []).append(task.pipeline)
    return [EvaluationJob(repeat, pooling, tuple(names)) for (repeat, pooling), names in groups.items()]


def evaluate_job(protocol: Protocol, root: Path, job: EvaluationJob) -> None:
    """Score all pipelines of a job in one pass over its test cases, and write their tables."""
    started = time.perf_counter()
    data = protocol.data(job.repeat, job.pooling)
    facts = Facts(data.store.manifest.dataset, data.ignore_index, data.background)
    folders = {task.pipeline: _folder(root, task) for task in job.tasks}
    calibrators = {name: load_calibrator(folder / layout.CALIBRATOR).eval() for name, folder in folders.items()}
    evaluated = evaluate(pooled_cases(data), calibrators, facts, job.repeat)
    for task in job.tasks:
        folder = folders[task.pipeline]
        records.write_evaluation(folder, evaluated[task.pipeline], protocol.evaluation_hash(task))
        records.add_timing(folder, evaluation_pass=time.perf_counter() - started)


def pooled_cases(data: StoredOutputsDataModule) -> Iterator[TestCase]:
    """Pooled test cases with their distances, by case id."""
    for logits, target, case_ids in data.batches("test"):
        yield TestCase(case_ids[0], logits, target, data.distance(case_ids[0])[None])


def _one_by_one(protocol: Protocol, root: Path, job: EvaluationJob, processes: Executor) -> None:
    """Evaluate the pipelines of a failed pass apart, so that only the one at fault is lost."""
    jobs = [EvaluationJob(job.repeat, job.pooling, (name,)) for name in job.pipelines]
    for outcome in processes.run(jobs, partial(evaluate_job, protocol, root)):
        if outcome.error is not None:
            _fail(root, protocol, outcome.job.tasks[0], outcome.error)


def _fail(root: Path, protocol: Protocol, task: Task, error: str) -> None:
    records.write_failure(_folder(root, task), task.repeat, task.pipeline, protocol.fit_hash(task), error)


def _folder(root: Path, task: Task) -> Path:
    return layout.task_folder(root, task.repeat, task.pipeline)


def _longest_first(tasks: list[Task]) -> list[Task]:
    """Local calibrators take longest: started first, they do not keep the others waiting at the end."""
    return sorted(tasks, key=lambda task: not task.local)


def _seconds(root: Path, task: Task, step: str) -> float:
    path = _folder(root, task) / layout.TIMING
    return float(read_json(path).get(step, 0.0)) if path.is_file() else 0.0


def _told(verb: str, task: Task, error: str | None) -> str:
    if error is None:
        return f"{verb} {task.pipeline}, repeat {task.repeat}"
    return f"FAILED {task.pipeline}, repeat {task.repeat} ({error.splitlines()[0]})"
