"""What an experiment's jobs do, wherever they run."""

from lightning_calib.experiment.evaluation_jobs import evaluation_job, shard_job
from lightning_calib.experiment.fit_jobs import fit_job, trial_job
from lightning_calib.experiment.parts import PoolJob, ShardJob, TrialJob
from lightning_calib.experiment.plan import EvaluationJob, FitJob
from lightning_calib.experiment.selection.jobs import SelectionJob, selection_job
from lightning_calib.experiment.selection.stack_jobs import stack_job
from lightning_calib.experiment.work import Work
from lightning_calib.outputs.cache import CaseCache

Job = PoolJob | TrialJob | FitJob | ShardJob | EvaluationJob | SelectionJob


def perform(work: Work, job: Job) -> None:
    """Do a job of whatever kind."""
    match job:
        case PoolJob():
            pool_job(work, job)
        case TrialJob():
            trial_job(work, job)
        case FitJob():
            stack_job(work, job) if job.stacked else fit_job(work, job)
        case ShardJob():
            shard_job(work, job)
        case EvaluationJob():
            evaluation_job(work, job)
        case SelectionJob():
            selection_job(work, job)


def pool_job(work: Work, job: PoolJob) -> None:
    """Bring maps of some cases into the cache; where it cannot be written, readers do without."""
    cache = CaseCache(work.experiment.store)
    for case_id in cache.missing(job.kind, job.case_ids):
        if cache.enabled:
            cache.make(job.kind, case_id)
