"""An experiment from frozen outputs to results: search, fit on `cal`, select on `val`, evaluate on `test`, sum up.

Each repeat and pipeline leaves its own files, and is skipped when they are there and were made with the same
settings: an experiment that was interrupted goes on where it stopped, and ends with the same bytes as one that was
not.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from lightning_calib.executors.base import Choice, make_executor
from lightning_calib.executors.local import available_cores
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.calls import alone, joined
from lightning_calib.experiment.parts import SHARD_VOXELS
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.steps import evaluate_all, fit_all, pool_all, select_all, sweep
from lightning_calib.experiment.summary import write_summary
from lightning_calib.experiment.tracking.tracking import JOURNALS, Runs, Tracking, tracking
from lightning_calib.experiment.work import Work
from lightning_calib.kit.checksums import CHECKSUMS, note_checksums
from lightning_calib.kit.files import write_json
from lightning_calib.kit.noise import hushed, quiet
from lightning_calib.kit.typed import read_typed, typed

Pages = Callable[[Results], Path]


def run_experiment(
    experiment: Experiment,
    executor: Choice = "local",
    workers: int | None = None,
    logger: str | None = "csv",
    name: str | None = None,
    trainer: Mapping[str, Any] | None = None,
    display: bool = True,
    start: Callable[[], None] = quiet,
    report: Pages | None = None,
    shard_voxels: int = SHARD_VOXELS,
    join: bool = False,
    logger_runs: Runs = "experiment",
) -> Results:
    """Run or go on with an experiment, and sum it up.

    Args:
        experiment: what to do.
        executor: ``local``, ``ray`` or another name; a mapping with the name and options, such as
            ``{"name": "ray", "address": "auto"}``; or an executor. Results do not depend on it.
        workers: jobs at a time; by default as many as there are cores for; 0 does everything in this process.
        logger: tracker that gets every number when it arises: csv, wandb, tensorboard, mlflow, one of your own, or
            None.
        name: name of the experiment for the tracker; by default that of the folder above the results.
        trainer: options of Lightning's Trainer for fits and evaluations, such as ``{"accelerator": "gpu"}``.
        display: show progress.
        start: called once in every worker process; by default it silences libraries.
        report: writes a report of the results, at the end, and returns its page; the tracker gets its pictures and
            files.
        shard_voxels: test cases are scored in groups of about so many voxels.
        join: share the jobs with other calls that run the same experiment in the same folder, also on other
            machines: each job is done once, and every call ends with all results.
        logger_runs: ``experiment`` for one tracked run, ``pipelines`` for one of each pipeline, too.
    """
    root, began = experiment.folder, time.perf_counter()
    called, follows = name or root.resolve().parent.name, logger not in (None, "none")
    make_ready = partial(prepare, experiment, root)
    with (
        joined(root, experiment, make_ready) if join else alone(root, make_ready) as call,
        tracking(logger if call.tracks else None, called, root, experiment.describe(), runs=logger_runs) as tracked,
    ):
        work = Work(experiment, root, trainer or {}, follows, shard_voxels)
        slots = slots_for(workers, work.trainer)
        processes = call.share(make_executor(executor, slots, experiment.threads, start))
        with processes, hushed(), tracked.following() if tracked else nullcontext():
            processes.check([experiment.store.path, root])
            _say_kept(call.kept, display)
            pool_all(work, processes, display)
            fit_all(work, processes, display)
            evaluate_all(work, processes, display)
            select_all(work, processes, display)
            sweep(work)
        with call.one_at_a_time():
            results = conclude(root, tracked, report)
            records.add_timing(root, run=time.perf_counter() - began)
    return results


def conclude(root: Path, tracked: Tracking | None, report: Pages | None) -> Results:
    """Sum an experiment up, for the tracker, too."""
    (root / CHECKSUMS).unlink(missing_ok=True)
    write_summary(root)
    results = Results(root)
    note_checksums(root, results.files)
    page = report(results) if report else None
    if tracked:
        tracked.finish(results, page)
    return results


def slots_for(workers: int | None, trainer: Mapping[str, Any]) -> int | None:
    """Jobs at a time; None leaves it to the executor, where a job takes one device."""
    devices = str(trainer.get("devices") or 1)
    several = max(1, int(devices)) if devices.isdigit() else 1
    return workers if workers is not None or several == 1 else max(1, available_cores() // several)


def prepare(experiment: Experiment, root: Path) -> list[str]:
    """Write settings and splits; take away what an interrupted run left half written.

    Returns:
        Pipelines of earlier calls whose results belong to these settings; they stay part of the results.
    """
    shutil.rmtree(root / JOURNALS, ignore_errors=True)
    (root / CHECKSUMS).unlink(missing_ok=True)  # of what this call writes anew
    for path in [*root.glob(".*.part"), *root.glob("selection/.*.part"), *(root / "repeats").rglob(".*.part")]:
        path.unlink(missing_ok=True)
    for repeat in range(experiment.repeats):
        split = experiment.split(repeat)
        empty = [part for part in ("cal", "val", "test") if not getattr(split, part)]
        if empty:
            named, option = ", ".join(empty), f"--{empty[0]} 0.3"
            raise ValueError(f"{named} of repeat {repeat} has no cases: give it a size, such as {option}")
        write_json(layout.split_path(root, repeat), {"cal": split.cal, "val": split.val, "test": split.test})
    if experiment.groups is not None:
        write_json(root / layout.GROUPS, experiment.groups)
    else:
        (root / layout.GROUPS).unlink(missing_ok=True)
    kept = earlier_pipelines(experiment, root)
    settings = experiment.describe()
    write_json(root / layout.SETTINGS, settings | {"pipelines": [*kept, *settings["pipelines"]]})
    return kept


def earlier_pipelines(experiment: Experiment, root: Path) -> list[str]:
    """Pipelines that an earlier call asked for, with fits by these settings in every repeat."""
    try:
        asked = typed(read_typed(root / layout.SETTINGS, dict[str, Any]).get("pipelines"), list[str])
    except ValueError:
        return []
    others = [name for name in asked if name not in experiment.names]
    return [name for name in others if all(_made_by(experiment, root, r, name) for r in range(experiment.repeats))]


def _made_by(experiment: Experiment, root: Path, repeat: int, pipeline: str) -> bool:
    """Whether the files of a pipeline were made with these settings; a name that is unknown now was not."""
    try:
        job = FitJob(repeat, pipeline)
        record = records.read_fit(layout.job_folder(root, repeat, job.name))
        return record is not None and record.settings_hash == experiment.fit_hash(job)
    except ValueError:
        return False


def _say_kept(kept: Sequence[str], display: bool) -> None:
    if kept and display:
        print(f"results of earlier calls with these settings stay: {', '.join(kept)}")
