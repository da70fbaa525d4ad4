"""Jobs that score all pipelines of a pooling in a repeat, or do so on some of the test cases."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytorch_lightning import Callback, LightningModule, Trainer
from safetensors import safe_open
from safetensors.torch import load_file

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.storage import load_calibrator
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.parts import ShardJob
from lightning_calib.experiment.plan import EvaluationJob, FitJob
from lightning_calib.experiment.work import Work, make_trainer
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.tensors import write_tensors
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import Outside, StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.tasks.evaluation import Evaluated, EvaluationTask


def evaluation_job(work: Work, job: EvaluationJob) -> None:
    """Score all pipelines of a job, each test case read once, and write their tables."""
    started, elsewhere = time.perf_counter(), 0.0
    parts = work.shards(job)
    journal = work.journal(f"{job.repeat}-{job.pooling}-{job.pipelines[0]}-{len(job.pipelines)}")
    write = WriteEvaluation(work, job)
    trainer, task = make_trainer(work.trainer, journal, write), make_task(work, job, whole=len(parts) == 1)
    if task.whole:
        trainer.test(task, work.experiment.data(job.repeat, job.pooling), verbose=False)
    else:
        elsewhere = sum(_take_shard(work, shard) for shard in parts)
        task.merge([load_file(work.part(shard)) for shard in parts])
        figures = task.conclude()
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=0)
        write.write(task)
    for fit in job.fits:
        records.add_timing(work.folder(fit), evaluation_pass=time.perf_counter() - started + elsewhere)


def _take_shard(work: Work, shard: ShardJob) -> float:
    """See that a shard is there; the seconds that it took, where another job has made it."""
    if not work.part(shard).is_file():
        shard_job(work, shard)
        return 0.0
    with safe_open(work.part(shard), framework="pt") as file:
        return float(file.metadata()["seconds"])


def shard_job(work: Work, job: ShardJob) -> None:
    """Score all pipelines of an evaluation on some of its test cases, and keep what was summed up."""
    started = time.perf_counter()
    data = work.experiment.data(job.whole.repeat, job.whole.pooling)
    data.split = replace(data.split, test=job.case_ids)
    task = make_task(work, job.whole, whole=False)
    make_trainer({**work.trainer, "logger": False}, None).test(task, data, verbose=False)
    path = work.part(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, task.states(), {"seconds": f"{time.perf_counter() - started:.3f}"})


def make_task(work: Work, job: EvaluationJob, whole: bool) -> EvaluationTask:
    """The task of an evaluation, with the fitted calibrators."""
    files = {label_of(fit): work.folder(fit) / layout.CALIBRATOR for fit in job.fits}
    calibrators = {label: load_calibrator(path).eval() for label, path in files.items()}
    cases = StoredCases(work.experiment.store, job.pooling, work.experiment.outside)
    background = work.experiment.store.manifest.background
    return EvaluationTask(calibrators, cases.ignore_index, background, whole=whole)


def label_of(fit: FitJob) -> str:
    """What trackers call a fit."""
    return f"{fit.name.slug}/{fit.repeat}"


def evaluate_cases(
    calibrators: Mapping[str, Calibrator],
    store: OutputStore,
    pooling: Pooling,
    case_ids: Sequence[str],
    trainer: Trainer,
    outside: Outside = "exclude",
    cache: bool = True,
) -> dict[str, Evaluated]:
    """Scores of calibrators on some cases of a store, one pass for all of them.

    Args:
        calibrators: fitted calibrators by a label.
        store: the frozen outputs.
        pooling: how their members are pooled.
        case_ids: which cases.
        trainer: where to; one process, or its result is to be read in each.
        outside: what voxels count as that were never predicted.
        cache: keep pooled maps and distances on disk beside the store.
    """
    data = StoredOutputsDataModule(store, pooling, cal=list(case_ids), val=0, test=0, outside=outside, cache=cache)
    task = EvaluationTask(calibrators, data.ignore_index, data.background)
    data.feature_names = task.feature_names
    trainer.test(task, data.case_dataloader("cal", distances=True), verbose=False)
    return task.evaluated


class WriteEvaluation(Callback):
    """Writes the tables of all pipelines when their Trainer is done, in the first process only."""

    def __init__(self, work: Work, job: EvaluationJob) -> None:
        self.work, self.job = work, job

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what came out."""
        if trainer.is_global_zero:
            assert isinstance(pl_module, EvaluationTask)
            self.write(pl_module)

    def write(self, task: EvaluationTask) -> None:
        """Write the tables."""
        experiment = self.work.experiment
        for fit in self.job.fits:
            records.write_evaluation(
                self.work.folder(fit),
                experiment.store.manifest.dataset,
                fit.repeat,
                fit.pipeline,
                task.evaluated[label_of(fit)],
                experiment.evaluation_hash(fit),
            )
