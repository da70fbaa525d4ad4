"""Jobs that search and fit a pipeline in a repeat, or run one trial of the search."""

import gc
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace

from pytorch_lightning import Callback, LightningModule, Trainer

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.experiment import records
from lightning_calib.experiment.fitting import PipelineFitter, curve_rows
from lightning_calib.experiment.parts import TRIALS, TrialJob
from lightning_calib.experiment.plan import FitJob
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.experiment.search.draws import round_of
from lightning_calib.experiment.search.search import SearchResult, attempt_trial, run_trials, trials_of
from lightning_calib.experiment.work import Work, make_trainer
from lightning_calib.solvers.epochs import MAX_EPOCHS
from lightning_calib.tasks.calibration import CalibrationTask


def trial_job(work: Work, job: TrialJob) -> None:
    """Run one trial of a search; nothing where earlier rounds are not whole."""
    fitter, fit = make_fitter(work, job.fit), job.fit
    kept = trials_of(fitter, work.experiment.trials_of(fit))
    if {row["trial"] for row in kept.rows()} >= set(range(round_of(job.place).start)):
        journal = work.journal(f"{fit.repeat}-{fit.name.slug}-{job.place}", f"{fit.name.slug}/{fit.repeat}")
        attempt_trial(fitter, kept, job.place, kept.point(job.place), journal)


def fit_job(work: Work, job: FitJob) -> None:
    """Search and fit one pipeline in one repeat, and write what came out."""
    started = time.perf_counter()
    journal = work.journal(f"{job.repeat}-{job.name.slug}", f"{job.name.slug}/{job.repeat}")
    fitter = make_fitter(work, job)
    if fitter.space.names or not fitter.has_parameters:
        found = run_trials(fitter, work.experiment.trials_of(job), logger=journal)
    else:
        found = SearchResult(fitter, math.nan, math.nan)  # the fit below is all there is to try
    write = WriteFit(work, job, found)
    # Adam takes one image a step, which several processes cannot share without making another fit of it.
    alone = {"devices": 1, "strategy": "auto"} if job.local else {}
    trainer = make_trainer({**work.trainer, **alone}, journal, write, max_epochs=fitter.max_epochs)
    if found.final_fit(trainer) is None:
        write.write(write.record)  # nothing was better than no calibration
    del found, write, fitter, trainer
    gc.collect()  # a Trainer and its task hold each other, and with them the prepared voxels of the search
    for leftover in work.folder(job).glob(f"{TRIALS}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    records.add_timing(work.folder(job), fit=time.perf_counter() - started)


def make_fitter(work: Work, job: FitJob) -> PipelineFitter:
    """What makes the fits of a job."""
    experiment = work.experiment
    return PipelineFitter(
        job.name,
        experiment.data(job.repeat, job.name.pooling),
        experiment.solver,
        job.seed(experiment.seed),
        str(work.trainer.get("accelerator") or "auto"),
        experiment.epochs_of(job, MAX_EPOCHS),
        work.trials(job),
        experiment.search,
    )


class WriteFit(Callback):
    """Writes a fit when its Trainer is done, in the first process only.

    It goes to the Trainer's processes, so it takes along what is written and nothing else of the search.
    """

    def __init__(self, work: Work, job: FitJob, found: SearchResult) -> None:
        self.folder, self.class_names = work.folder(job), found.fitter.data.class_names
        self.identity, self.trials, self.sampled = found.fitter.fresh(), found.trials, found.fitter.sampled
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
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, CalibrationTask)
        assert pl_module.machine is not None
        certificate = pl_module.machine.describe()
        if not self.trials:  # nothing was searched: this fit is the one trial
            nll, identity = pl_module.val_nll, pl_module.identity_nll
            row = {"trial": 0, "state": "complete", "val_nll": nll, "values": {}, "passes": certificate["passes"]}
            self.trials = [row]
            self.record = replace(self.record, val_nll=min(nll, identity), identity_val_nll=identity)
            if not nll < identity:
                self.write(self.record)
                return
        if self.sampled:  # the trial saw a part of the voxels
            self.record = replace(self.record, val_nll=pl_module.val_nll)
        curve = curve_rows(pl_module.machine, pl_module.curve)
        self.write(replace(self.record, certificate=certificate), pl_module.calibrator.cpu(), curve)

    def write(
        self, record: records.FitRecord, calibrator: Calibrator | None = None, curve: Sequence[CurveRow] = ()
    ) -> None:
        """Write the files of the fit; without a calibrator, of the identity."""
        records.write_fit(self.folder, record, calibrator or self.identity, self.trials, curve, self.class_names)
