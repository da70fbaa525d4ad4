"""What an experiment's jobs do, wherever they run: search and fit a pipeline, or score all pipelines of a pooling."""

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers.logger import Logger

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.storage import load_calibrator
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.journal import Journal
from lightning_calib.experiment.plan import EvaluationJob, Experiment, FitJob
from lightning_calib.experiment.search import SearchResult, search
from lightning_calib.experiment.tracking import JOURNALS
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import Outside, StoredOutputsDataModule
from lightning_calib.solvers.adam import MAX_EPOCHS
from lightning_calib.tasks.calibration import CalibrationTask
from lightning_calib.tasks.evaluation import Evaluated, EvaluationTask

_QUIET = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary")


@dataclass(frozen=True)
class Work:
    """Everything that jobs share; goes to every process that runs one.

    Attributes:
        experiment: what is to be done.
        root: where its results go.
        trainer: options of Lightning's Trainer, as the user gave them.
        journals: whether somebody follows the numbers.
    """

    experiment: Experiment
    root: Path
    trainer: Mapping[str, Any] = field(default_factory=dict)
    journals: bool = False

    def folder(self, job: FitJob) -> Path:
        """Where a fit's files are."""
        return layout.job_folder(self.root, job.repeat, job.name)

    def journal(self, file: str, place: str = "") -> Journal | None:
        """A journal for the numbers of a job."""
        return Journal(self.root / JOURNALS / f"{file}.jsonl", place) if self.journals else None


def make_trainer(options: Mapping[str, Any], journal: Logger | None, *callbacks: Callback, **defaults: Any) -> Trainer:
    """The Trainer of a job: the user's options, our defaults where there are none, the journal beside their loggers.

    A job may run in a process of an executor, which cannot start itself again as a script: ``ddp`` starts its
    processes by spawning.
    """
    given = {key: value for key, value in options.items() if value is not None}
    own = given.get("logger") or []
    loggers = [*(own if isinstance(own, list) else [own]), *([journal] if journal else [])]
    listed = given.get("callbacks") or []
    merged = {
        "devices": 1,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        **dict.fromkeys(_QUIET, False),
        **defaults,
        **given,
    }
    merged["logger"] = [logger for logger in loggers if isinstance(logger, Logger)] or False
    merged["callbacks"] = [*(listed if isinstance(listed, list) else [listed]), *callbacks]
    merged["strategy"] = {"ddp": "ddp_spawn"}.get(merged.get("strategy", "auto"), merged.get("strategy", "auto"))
    return Trainer(**merged)


def fit_job(work: Work, job: FitJob) -> None:
    """Search and fit one pipeline in one repeat, and write what came out."""
    started = time.perf_counter()
    experiment = work.experiment
    data = experiment.data(job.repeat, job.name.pooling)
    epochs = experiment.epochs_of(job, MAX_EPOCHS)
    journal = work.journal(f"{job.repeat}-{job.name.slug}", f"{job.name.slug}/{job.repeat}")
    found = search(
        job.name,
        data,
        trials=experiment.trials_of(job),
        seed=job.seed(experiment.seed),
        solver=experiment.solver,
        accelerator=str(work.trainer.get("accelerator") or "auto"),
        max_epochs=epochs,
        logger=journal,
    )
    write = WriteFit(work, job, found, data.class_names)
    # Adam takes one image a step, which several processes cannot share without making another fit of it.
    alone = {"devices": 1, "strategy": "auto"} if job.local else {}
    if found.final_fit(make_trainer({**work.trainer, **alone}, journal, write, max_epochs=epochs)) is None:
        write.write({})  # nothing was better than no calibration
    del found, write
    gc.collect()  # a Trainer and its task hold each other, and with them the prepared voxels of the search
    records.add_timing(work.folder(job), fit=time.perf_counter() - started)


class WriteFit(Callback):
    """Writes a fit when its Trainer is done, in the first process only.

    It goes to the Trainer's processes, so it takes along what is written and nothing else of the search.
    """

    def __init__(self, work: Work, job: FitJob, found: SearchResult, class_names: list[str]) -> None:
        self.folder, self.class_names = work.folder(job), class_names
        self.calibrator, self.trials, self.curve = found.calibrator, found.trials, found.curve
        self.record = records.FitRecord(
            repeat=job.repeat,
            pipeline=job.pipeline,
            settings_hash=work.experiment.fit_hash(job),
            hyperparameters=found.hyperparameters,
            val_nll=found.val_nll,
            identity_val_nll=found.identity_val_nll,
        )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what came out."""
        if trainer.is_global_zero:
            assert isinstance(pl_module, CalibrationTask)
            self.calibrator = pl_module.calibrator.cpu()
            self.write({} if pl_module.machine is None else pl_module.machine.describe())

    def write(self, certificate: dict[str, Any]) -> None:
        """Write the files of the fit."""
        record = replace(self.record, certificate=certificate)
        records.write_fit(self.folder, record, self.calibrator, self.trials, self.curve, self.class_names)


def evaluation_job(work: Work, job: EvaluationJob) -> None:
    """Score all pipelines of a job in one pass over its test cases, and write their tables."""
    started = time.perf_counter()
    data = work.experiment.data(job.repeat, job.pooling)
    fits = {f"{fit.name.slug}/{fit.repeat}": fit for fit in job.fits}
    calibrators = {label: load_calibrator(work.folder(fit) / layout.CALIBRATOR).eval() for label, fit in fits.items()}
    task = EvaluationTask(calibrators, data.ignore_index, data.background)
    journal = work.journal(f"{job.repeat}-{job.pooling}-{job.pipelines[0]}-{len(job.pipelines)}")
    trainer = make_trainer(work.trainer, journal, WriteEvaluation(work, fits))
    trainer.test(task, data, verbose=False)
    for fit in job.fits:
        records.add_timing(work.folder(fit), evaluation_pass=time.perf_counter() - started)


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
    trainer.test(task, data.case_dataloader("cal", distances=True), verbose=False)
    return task.evaluated


class WriteEvaluation(Callback):
    """Writes the tables of all pipelines when their Trainer is done, in the first process only."""

    def __init__(self, work: Work, fits: Mapping[str, FitJob]) -> None:
        self.work, self.fits = work, dict(fits)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what came out."""
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, EvaluationTask)
        experiment = self.work.experiment
        for label, fit in self.fits.items():
            records.write_evaluation(
                self.work.folder(fit),
                experiment.store.manifest.dataset,
                fit.repeat,
                fit.pipeline,
                pl_module.evaluated[label],
                experiment.evaluation_hash(fit),
            )
