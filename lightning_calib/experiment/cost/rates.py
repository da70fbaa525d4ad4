"""What the parts of an experiment cost on this machine, measured within seconds on a few voxels of its own cases.

Figures are seconds of processor time, which a machine that is busy with other work changes little.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightning_calib.calibrators import CALIBRATORS, Calibrator, LinearCalibrator, PipelineName, Stack, build
from lightning_calib.executors.local import torch_threads
from lightning_calib.experiment.cost.strips import Strips, once, seconds_of
from lightning_calib.experiment.evaluation_jobs import evaluation_job
from lightning_calib.experiment.fit_jobs import fit_job
from lightning_calib.experiment.plan import EvaluationJob, Experiment, FitJob
from lightning_calib.experiment.selection.jobs import candidates_of
from lightning_calib.experiment.selection.stacking import parts_of, with_parts
from lightning_calib.experiment.work import Work
from lightning_calib.functional.boundary import boundary_distance
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.solvers import EpochSolver, SampledSolver, choose_solver, make_solver
from lightning_calib.solvers.base import Batch, PassSolver, SolverName
from lightning_calib.solvers.fit import takes_epochs
from lightning_calib.solvers.stream import KeptWalk, Walk
from lightning_calib.solvers.sums import pooled_nll
from lightning_calib.tasks.evaluation import EvaluationTask

PASSES = 3  # passes of newton that are timed


@dataclass(frozen=True)
class CalibratorRates:
    """What a calibrator costs: seconds a voxel where nothing else is said.

    Attributes:
        solver: what fits it; empty where there is nothing to fit.
        prepare: bring voxels into the solver's form: once where they are kept, else in every pass.
        first: what the first pass of a fit takes more than later ones.
        each: a pass over ``cal`` in which all experts take part.
        begin: seconds at the end of the first pass, whatever the number of voxels.
        step: the same at the end of a later one.
        judge: NLL of ``val``.
        score: all scores of ``test``.
        kept: bytes of a prepared voxel.
    """

    solver: str
    prepare: float = 0.0
    first: float = 0.0
    each: float = 0.0
    begin: float = 0.0
    step: float = 0.0
    judge: float = 0.0
    score: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True)
class Rates:
    """What an experiment's parts cost on this machine.

    Attributes:
        calibrators: by name; ``identity`` is always there.
        pooling: seconds a voxel of making and writing a pooled map, over all members.
        distance: seconds a voxel of making and writing distances to the boundary.
        fit_job: seconds of a search beside its passes: Trainer, files.
        evaluation_job: seconds of an evaluation beside its cases.
        start: seconds that a worker process takes until it can work.
        memory: bytes of a worker process before it works.
        features: seconds a voxel of all maps of features.
    """

    calibrators: dict[str, CalibratorRates]
    pooling: float
    distance: float
    fit_job: float
    evaluation_job: float
    start: float
    memory: int
    features: float = 0.0


def measure(experiment: Experiment) -> Rates:
    """Measure the parts of an experiment on a few voxels of its cases; nothing is written beside the store."""
    with torch_threads(experiment.threads):
        sample = Strips.of(experiment)
        needed = [*experiment.names, *with_parts(candidates_of(experiment))]
        names = dict.fromkeys(["identity", *(PipelineName.parse(name).calibrator for name in needed)])
        calibrators = {name: _calibrator(sample, name, experiment.solver) for name in names}
        with tempfile.TemporaryDirectory() as folder:
            pooling, distance = sample.pooling(Path(folder)), sample.distances(Path(folder))
            features = sample.features(Path(folder))
            jobs = _fixed(sample.store, Path(folder))
    return Rates(calibrators, pooling, distance, *jobs, *_start(), features)


def _calibrator(sample: Strips, name: str, solver: SolverName) -> CalibratorRates:
    """Figures of one calibrator."""
    facts = (sample.store.manifest.num_classes, sample.store.manifest.spatial_dims)
    fresh = partial(build, name, *facts)
    if CALIBRATORS[name].solver == "stacking":
        parts = [build(PipelineName.parse(part).calibrator, *facts) for part in parts_of("p")]
        return CalibratorRates("", score=_score(sample, Stack.of(parts, [1 / len(parts)] * len(parts))) / sample.voxels)
    sample = sample.with_features(fresh().feature_names)
    score = _score(sample, fresh()) / sample.voxels
    if not list(fresh().parameters()):
        judge = _judge(sample, fresh(), None) / sample.voxels
        return CalibratorRates("", judge=judge, score=score)
    kind = choose_solver(fresh()) if solver == "auto" else solver
    if kind == "newton":
        return _newton(sample, fresh, score)
    options: dict[str, Any] = {"ignore_index": sample.ignore_index}
    judge = _judge(sample, fresh(), None) / sample.voxels
    if takes_epochs(kind):
        machine = make_solver(fresh(), kind, **options)
        assert isinstance(machine, EpochSolver)
        each = seconds_of(lambda: _pass(machine, sample.batches))
        step = once(machine.move)
        if isinstance(machine, SampledSolver):  # a few voxels here, a whole sample then
            step *= max(1.0, machine.sample_size / sample.voxels)
        return CalibratorRates(kind, each=each / sample.voxels, step=step, judge=judge, score=score)
    each = seconds_of(
        lambda: make_solver(fresh(), kind, **options).solve(sample.batches), per=lambda found: found.passes
    )
    return CalibratorRates(kind, each=each / sample.voxels, judge=judge, score=score)


def _newton(sample: Strips, fresh: Callable[[], Calibrator], score: float) -> CalibratorRates:
    """Figures of passes over prepared voxels, and of their preparation."""
    calibrator = fresh()
    assert isinstance(calibrator, LinearCalibrator)
    plain, kept = Walk(calibrator, sample.ignore_index), KeptWalk(calibrator, sample.ignore_index)
    prepare = seconds_of(lambda: [list(plain(*batch)) for batch in sample.batches])
    for batch in sample.batches:
        list(kept(*batch))
    solver = make_solver(fresh(), "newton", ignore_index=sample.ignore_index, walk=kept)
    assert isinstance(solver, PassSolver)
    passes: list[float] = []
    steps: list[float] = []
    while len(passes) < PASSES and not solver.done:
        passes.append(once(lambda: _pass(solver, sample.batches)))
        steps.append(once(solver.end_pass))
    first, later = passes[0], min(passes[1:] or passes)
    voxels = sample.voxels
    return CalibratorRates(
        "newton",
        prepare / voxels,
        max(0.0, first - later) / voxels,
        later / voxels,
        steps[0],
        sum(steps[1:]) / max(1, len(steps) - 1),
        _judge(sample, fresh(), kept) / voxels,
        score,
        kept.used() / voxels,
    )


def _pass(solver: PassSolver, batches: Sequence[Batch]) -> None:
    for batch in batches:
        solver.accumulate(*batch)


def _judge(sample: Strips, calibrator: Calibrator, walk: KeptWalk | None) -> float:
    def work() -> None:
        pooled = pooled_nll(calibrator, sample.ignore_index, walk)
        for batch in sample.batches:
            pooled.add(*batch)

    return seconds_of(work)


def _score(sample: Strips, calibrator: Calibrator) -> float:
    manifest = sample.store.manifest
    task = EvaluationTask({"it": calibrator}, sample.ignore_index, manifest.background)
    distances = [boundary_distance(target, sample.ignore_index) for _, target, *_ in sample.batches]

    def work() -> None:
        for batch, distance in zip(sample.batches, distances, strict=True):
            named = dict(zip(("logits", "target", "case_id", "features"), batch, strict=False))
            task.test_step({**named, "distance": distance}, 0)

    with torch.inference_mode():
        return seconds_of(work)


def _fixed(store: OutputStore, folder: Path) -> tuple[float, float]:
    """Seconds of a search and of an evaluation of next to no voxels: the second of each, when all is imported."""
    manifest = store.manifest
    dims, classes = manifest.spatial_dims, manifest.num_classes
    writer = OutputWriter(folder / "outputs", "tiny", list(manifest.class_names), dims, [Member("0")])
    for number in range(3):
        logits = torch.randn(1, classes, *(8,) * dims, generator=torch.Generator().manual_seed(number))
        writer.write(str(number), 3 * logits, logits[0].argmax(0))
    writer.finish()
    experiment = Experiment(folder / "outputs", ["ts(z)"], repeats=1, trials=1, cal=1, val=1, test=1)
    work, job = Work(experiment, experiment.folder, {"accelerator": "cpu"}), FitJob(0, "ts(z)")
    fits = [once(lambda: fit_job(work, job)) for _ in range(2)]
    evaluations = [once(lambda: evaluation_job(work, EvaluationJob(0, "z", ("ts(z)",)))) for _ in range(2)]
    return fits[-1], evaluations[-1]


def _start() -> tuple[float, int]:
    """Seconds and bytes of a process that has imported what jobs need."""
    program = (
        "import resource, time, lightning_calib.experiment.jobs; "
        "print(time.process_time(), 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    seconds, memory = done.stdout.split()[-2:]
    return float(seconds), int(memory)
