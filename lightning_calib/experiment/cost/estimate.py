"""What an experiment will cost, before it is begun: processor time, time on a number of workers, disk, memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lightning_calib.experiment import layout, records
from lightning_calib.experiment.cost.rates import measure
from lightning_calib.experiment.cost.schedule import finish_time
from lightning_calib.experiment.cost.workload import STAGES, Extent, Model, Piece, Stage
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.selection.jobs import SelectionJob, pending_selections
from lightning_calib.experiment.work import Work
from lightning_calib.kit.progress import spoken
from lightning_calib.kit.tables import Table


@dataclass(frozen=True)
class Cost:
    """Jobs with their lengths, and what they need.

    Attributes:
        pieces: jobs in the order in which they are handed out.
        start: seconds until a worker process can work.
        threads: threads that each job uses; they are taken to share its work evenly.
        disk: bytes of maps that are kept beside the store.
        memory: bytes of the largest worker.
    """

    pieces: list[Piece]
    start: float
    threads: int
    disk: int
    memory: int

    @property
    def seconds(self) -> float:
        """Processor seconds of all jobs."""
        return sum(piece.seconds for piece in self.pieces)

    @property
    def longest(self) -> Piece | None:
        """The longest job."""
        return max(self.pieces, key=lambda piece: piece.seconds, default=None)

    def steps(self, workers: int) -> list[list[float]]:
        """Lengths of what runs at the same time on a number of workers, step by step, as ``run`` hands it out.

        Maps come first, then searches, evaluations, and selections by groups. Where there are more workers than
        searches, their trials are shared out round by round; where there are more than searches over neighbourhoods,
        the trials of those.
        """
        pooling, searches, evaluations, selections = ([p for p in self.pieces if p.stage == stage] for stage in STAGES)
        slow = [piece for piece in searches if piece.local]
        shared = searches if workers > len(searches) else slow if workers > len(slow) else []
        whole = [piece.seconds for piece in searches if piece not in shared]
        first, *later = _rounds(shared) or [[]]
        cut = _rounds(evaluations) if workers > 1 else [[piece.seconds for piece in evaluations]]
        return [*_rounds(pooling), first + whole, *later, *cut, *_rounds(selections)]

    def wall(self, workers: int) -> float:
        """Seconds on a number of workers, each with ``threads`` cores of its own."""
        if not self.pieces:
            return 0.0
        return self.start + sum(finish_time(step, max(workers, 1)) for step in self.steps(workers)) / self.threads

    def kinds(self) -> dict[tuple[Stage, str], list[Piece]]:
        """Jobs by stage and by what they are about."""
        found: dict[tuple[Stage, str], list[Piece]] = {}
        for piece in self.pieces:
            found.setdefault((piece.stage, piece.kind), []).append(piece)
        return found

    def table(self) -> Table:
        """Processor time by stage and calibrator."""
        rows = [
            [f"{stage} {kind}", str(len(jobs)), spoken(work := _work(jobs)), f"{work / self.seconds:.0%}"]
            for (stage, kind), jobs in self.kinds().items()
        ]
        caption = f"processor time in all: {spoken(self.seconds)}"
        return Table.of("cost", caption, ("work", "jobs", "processor time", "share"), rows)

    def describe(self, workers: int) -> dict[str, Any]:
        """The figures as plain types."""
        kinds = {f"{stage} {kind}": _work(jobs) for (stage, kind), jobs in self.kinds().items()}
        longest = self.longest
        return {
            "jobs": len(self.pieces),
            "processor_seconds": self.seconds,
            "by_kind": kinds,
            "workers": workers,
            "wall_seconds": self.wall(workers),
            "longest_job": longest and {"name": longest.name, "seconds": longest.seconds / self.threads},
            "disk_bytes": self.disk,
            "memory_bytes": self.memory,
        }


def cost_of(experiment: Experiment) -> Cost:
    """What is left to do of an experiment, from figures that are measured now on a few of its own voxels."""
    fits, scores = pending(experiment)
    selections = pending_selections(Work(experiment, experiment.folder))
    if not fits and not scores and not selections:
        return Cost([], 0.0, experiment.threads, 0, 0)
    return modelled(Model(experiment, Extent.of(experiment), measure(experiment)), fits, scores, selections)


def modelled(
    model: Model, fits: Sequence[FitJob], scores: Sequence[FitJob], selections: Sequence[SelectionJob] = ()
) -> Cost:
    """Cost of some searches, evaluations and selections by a model."""
    pieces = model.pieces(fits, scores, selections)
    return Cost(pieces, model.rates.start, model.experiment.threads, model.extent.cache_bytes, model.memory)


def pending(experiment: Experiment) -> tuple[list[FitJob], list[FitJob]]:
    """Searches and evaluations that have no results with these settings yet."""
    fits, scores = [], []
    for job in experiment.jobs:
        folder = layout.job_folder(experiment.folder, job.repeat, job.name)
        if not records.fit_done(folder, experiment.fit_hash(job)):
            fits.append(job)
        if not records.evaluation_done(folder, experiment.evaluation_hash(job)):
            scores.append(job)
    return fits, scores


def _rounds(pieces: Sequence[Piece]) -> list[list[float]]:
    """Tasks of the first round of all jobs, of the second, and so on."""
    most = max((len(piece.rounds) for piece in pieces), default=0)
    rounds = [[piece.rounds[number] for piece in pieces if number < len(piece.rounds)] for number in range(most)]
    return [list(chain.from_iterable(tasks)) for tasks in rounds]


def _work(jobs: Sequence[Piece]) -> float:
    return sum(piece.seconds for piece in jobs)
