"""The steps of an experiment, each a list of jobs for an executor: pool, fit, evaluate, select."""

import shutil
import uuid
from collections.abc import Iterator, Sequence
from functools import partial

from lightning_calib.calibrators import build
from lightning_calib.executors.base import Executor, Outcome
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.jobs import Job, perform
from lightning_calib.experiment.parts import PARTS, TRIALS, PoolJob, ShardJob, TrialJob, kinds_of, shards
from lightning_calib.experiment.plan import EvaluationJob, FitJob
from lightning_calib.experiment.search.draws import rounds
from lightning_calib.experiment.search.space import Space
from lightning_calib.experiment.search.trials import missing_places
from lightning_calib.experiment.selection import records as selection_records
from lightning_calib.experiment.selection.jobs import SelectionJob, maps_of, pending_selections, selection_hash
from lightning_calib.experiment.work import Work
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.progress import Display
from lightning_calib.outputs.cache import DISTANCE, CaseCache, Kind
from lightning_calib.solvers import choose_solver

_VERBS = {
    PoolJob: "made",
    TrialJob: "ran",
    FitJob: "fitted",
    ShardJob: "scored",
    EvaluationJob: "evaluated",
    SelectionJob: "made",
}


def pool_all(work: Work, executor: Executor, display: bool) -> None:
    """Fill the cache with the maps that fits and evaluations will read; a case that fails is left to its readers."""
    jobs: list[Job] = [*pending_pools(work)]
    with _display(work, "pool", executor, jobs, display) as shown:
        for outcome in executor.run(jobs, partial(perform, work)):
            _show(work, shown, outcome)


def pending_pools(work: Work) -> list[PoolJob]:
    """Maps that are needed and are not in the cache yet."""
    experiment = work.experiment
    needed: dict[tuple[Kind, str], None] = {}
    for job in pending_fits(work):
        split = experiment.split(job.repeat)
        cases = split.cal + split.val
        needed |= dict.fromkeys((kind, case_id) for kind in kinds_of(job.name) for case_id in cases)
    for job in experiment.jobs:
        if not _evaluated(work, job):
            test = experiment.split(job.repeat).test
            needed |= dict.fromkeys((kind, case_id) for kind in (*kinds_of(job.name), DISTANCE) for case_id in test)
    for selection in pending_selections(work):
        needed |= dict.fromkeys(maps_of(experiment, selection))
    cache, found = CaseCache(experiment.store), []
    for kind in sorted({kind for kind, _ in needed}):
        missing = cache.missing(kind, sorted(case_id for other, case_id in needed if other == kind))
        records_of = (experiment.store[case_id].record for case_id in missing)
        found += [PoolJob(kind, group) for group in shards(records_of, work.shard_voxels)]
    return found


def fit_all(work: Work, executor: Executor, display: bool) -> None:
    """Fit every pipeline in every repeat that has no fit with these settings.

    Where there is room, trials of one search run at the same time, round by round, and its fit follows.
    """
    jobs = pending_fits(work)
    steps = list(fit_steps(work, jobs, executor.slots))
    with _display(work, "fit", executor, [job for step in steps for job in step], display) as shown:
        for step in steps:
            for outcome in executor.run(step, partial(perform, work)):
                _note_failed_fit(work, outcome)
                _show(work, shown, outcome)


def pending_fits(work: Work) -> list[FitJob]:
    """Fits that are not there yet, those that take longest first: they do not keep the others waiting."""
    experiment = work.experiment
    jobs = [job for job in experiment.jobs if not records.fit_done(work.folder(job), experiment.fit_hash(job))]
    return sorted(jobs, key=lambda job: job.name.cls.looks_at == "voxel")


def fit_steps(work: Work, jobs: Sequence[FitJob], slots: int) -> Iterator[list[Job]]:
    """What may run at the same time: searches of one job each, and the rounds of those whose trials are shared out.

    A trial that fails, or whose earlier rounds are not whole, is left to the fit.
    """
    shared = shared_searches(work, jobs, slots)
    places = {job: rounds(work.experiment.trials_of(job)) for job in shared}
    step: list[Job] = []
    for number in range(max(map(len, places.values()), default=0) + 1):
        running = [job for job in shared if number < len(places[job])]
        for job in running:
            step += [TrialJob(job, place) for place in missing_places(work.trials(job), places[job][number])]
        step += [job for job in shared if number == len(places[job])]
        yield step + ([job for job in jobs if job not in shared] if number == 0 else [])
        step = []


def shared_searches(work: Work, jobs: Sequence[FitJob], slots: int) -> list[FitJob]:
    """Searches whose trials are shared out: all, or the slowest kind, where there are more slots than of them."""
    slowest = [job for job in jobs if job.local]
    chosen = jobs if slots > len(jobs) else slowest if slots > len(slowest) else []
    return [job for job in chosen if slots > 1 and _is_searched(work, job)]


def _is_searched(work: Work, job: FitJob) -> bool:
    if job.stacked:
        return False
    manifest, solver = work.experiment.store.manifest, work.experiment.solver
    calibrator = build(job.name.calibrator, manifest.num_classes, manifest.spatial_dims)
    space = Space.of(calibrator, choose_solver(calibrator) if solver == "auto" else solver)
    return bool(space.names) and bool(list(calibrator.parameters())) and work.experiment.trials_of(job) > 1


def evaluate_all(work: Work, executor: Executor, display: bool) -> None:
    """Evaluate every fit that has no scores yet; pipelines of a pass that failed are then judged one by one."""
    failed = _evaluate(work, executor, pending_evaluations(work), display)
    alone = [EvaluationJob(job.repeat, job.pooling, (name,)) for job in failed for name in job.pipelines]
    for job, error in _evaluate(work, executor, alone, display).items():
        (fit,) = job.fits
        records.write_failed_evaluation(work.folder(fit), work.experiment.evaluation_hash(fit), error)


def sweep(work: Work) -> None:
    """Take away the parts of what is done; trials of a fit that failed stay, so that the next call has less to do."""
    for repeat in range(work.experiment.repeats):
        shutil.rmtree(layout.repeat_folder(work.root, repeat) / PARTS, ignore_errors=True)
    unfitted = {work.folder(job) for job in pending_fits(work)}
    for trials in work.root.glob(f"repeats/*/*/{TRIALS}-*"):
        if trials.parent not in unfitted:
            shutil.rmtree(trials, ignore_errors=True)
    left = [*work.root.glob("selection/.*.part"), *(work.root / "repeats").rglob(".*.part")]
    for half_written in left:  # by a worker that was killed; nobody writes now
        half_written.unlink(missing_ok=True)


def _evaluate(work: Work, executor: Executor, jobs: Sequence[EvaluationJob], display: bool) -> dict[EvaluationJob, str]:
    """Do evaluations, in shards where there is room; the errors of those that failed."""
    failed = {}
    steps: list[list[Job]] = [[*pending_shards(work, jobs, executor.slots)], [*jobs]]
    with _display(work, "evaluate", executor, [job for step in steps for job in step], display) as shown:
        for step in steps:
            for outcome in executor.run(step, partial(perform, work)):
                if outcome.error is not None and isinstance(outcome.job, EvaluationJob):
                    failed[outcome.job] = outcome.error
                _show(work, shown, outcome)
    return failed


def pending_shards(work: Work, jobs: Sequence[EvaluationJob], slots: int) -> list[ShardJob]:
    """Parts of evaluations that can be made at the same time; none where there is no room for it."""
    parts = [work.shards(job) for job in jobs] if slots > 1 else []
    return [shard for group in parts if len(group) > 1 for shard in group if not work.part(shard).is_file()]


def pending_evaluations(work: Work) -> list[EvaluationJob]:
    """Repeats and poolings with fits that have no scores yet."""
    groups: dict[tuple[int, Pooling], list[str]] = {}
    for job in work.experiment.jobs:
        fitted = records.fit_done(work.folder(job), work.experiment.fit_hash(job))
        if fitted and not _evaluated(work, job):
            groups.setdefault((job.repeat, job.name.pooling), []).append(job.pipeline)
    return [EvaluationJob(repeat, pooling, tuple(names)) for (repeat, pooling), names in groups.items()]


def select_all(work: Work, executor: Executor, display: bool) -> None:
    """Select by groups in every repeat and on all cases, where the experiment is to; what is there stays."""
    jobs: list[Job] = [*pending_selections(work)]
    with _display(work, "select", executor, jobs, display) as shown:
        for outcome in executor.run(jobs, partial(perform, work)):
            _note_failed_selection(work, outcome)
            _show(work, shown, outcome)


def _evaluated(work: Work, job: FitJob) -> bool:
    return records.evaluation_done(work.folder(job), work.experiment.evaluation_hash(job))


def _note_failed_fit(work: Work, outcome: Outcome[Job]) -> None:
    job, error = outcome.job, outcome.error
    if error is not None and isinstance(job, FitJob):
        settings_hash = work.experiment.fit_hash(job)
        records.write_failed_fit(work.folder(job), job.repeat, job.pipeline, settings_hash, error)


def _note_failed_selection(work: Work, outcome: Outcome[Job]) -> None:
    job, error = outcome.job, outcome.error
    if error is not None and isinstance(job, SelectionJob):
        folder = layout.selection_folder(work.root, job.repeat)
        selection_records.write_failed_selection(folder, job.repeat, selection_hash(work.experiment, job), error)


def _display(work: Work, step: str, executor: Executor, jobs: Sequence[Job], display: bool) -> Display:
    """A display of a step's jobs, which the tracker follows, too; calls that have joined have a journal each."""
    journal = work.journal(f"progress-{step}-{uuid.uuid4().hex}") if jobs else None

    def tell(share: float, left: float, done: int) -> None:
        if journal is not None:
            journal.log_metrics({f"progress/{step}": share, f"progress/{step}_seconds_left": left}, done)

    return Display(map(_kind, jobs), executor.slots, quiet=not display, doing=executor.doing, tell=tell)


def _kind(job: Job) -> str:
    """What jobs of about the same length are called."""
    match job:
        case PoolJob():
            return job.kind
        case TrialJob():
            return f"trial of {job.fit.name.calibrator}"
        case FitJob():
            return job.name.calibrator
        case ShardJob():
            return f"shard of {job.whole.pooling}"
        case EvaluationJob():
            return f"evaluation {job.pooling}"
        case SelectionJob():
            return "selection"


def _show(work: Work, shown: Display, outcome: Outcome[Job]) -> None:
    job, error = outcome.job, outcome.error
    text = f"{_VERBS[type(job)]} {job}" if error is None else f"FAILED {job} ({error.splitlines()[0]})"
    shown.done(_kind(job), text, _seconds(work, job))


def _seconds(work: Work, job: Job) -> float | None:
    """How long a job took, where it has noted it."""
    match job:
        case FitJob():
            return _timing(work, job, "fit")
        case EvaluationJob():
            return max(_timing(work, fit, "evaluation_pass") for fit in job.fits)
    return None


def _timing(work: Work, job: FitJob, step: str) -> float:
    return records.read_timing(work.folder(job)).get(step, 0.0)
