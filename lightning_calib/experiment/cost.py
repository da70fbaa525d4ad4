"""What an experiment will cost, before it is begun: processor time, time on a number of workers, disk, memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_calib.experiment import layout, records
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.rates import measure
from lightning_calib.experiment.schedule import Chain, finish_time
from lightning_calib.experiment.workload import STAGES, Extent, Model, Piece, Stage
from lightning_calib.kit.progress import spoken
from lightning_calib.kit.tables import Table


@dataclass(frozen=True)
class Cost:
    """Jobs with their lengths, and what they need.

    Attributes:
        pieces: jobs in the order in which they are handed out.
        start: seconds until a worker process can work.
        threads: threads a job; they are taken to share its work evenly.
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
        return sum(piece.chain.seconds for piece in self.pieces)

    @property
    def longest(self) -> Chain | None:
        """The job that takes longest, however many workers there are."""
        return max((piece.chain for piece in self.pieces), key=lambda chain: chain.longest, default=None)

    def chains(self, stage: Stage) -> list[Chain]:
        """Jobs of a stage."""
        return [piece.chain for piece in self.pieces if piece.stage == stage]

    def wall(self, workers: int) -> float:
        """Seconds on a number of workers: stage by stage, each job to the first worker that is free."""
        stages = [finish_time(chains, max(workers, 1)) for stage in STAGES if (chains := self.chains(stage))]
        return self.start + sum(stages) / self.threads if stages else 0.0

    def kinds(self) -> dict[tuple[Stage, str], list[Chain]]:
        """Jobs by stage and by what they are about: the map, the calibrator, the pooling."""
        found: dict[tuple[Stage, str], list[Chain]] = {}
        for piece in self.pieces:
            found.setdefault((piece.stage, piece.kind), []).append(piece.chain)
        return found

    def table(self) -> Table:
        """Processor time by stage and calibrator."""
        rows = [
            [f"{stage} {kind}", str(len(chains)), spoken(work := _work(chains)), f"{work / self.seconds:.0%}"]
            for (stage, kind), chains in self.kinds().items()
        ]
        caption = f"processor time in all: {spoken(self.seconds)}"
        return Table.of("cost", caption, ("work", "jobs", "processor time", "share"), rows)

    def describe(self, workers: int) -> dict[str, Any]:
        """The figures as plain types."""
        kinds = {f"{stage} {kind}": _work(chains) for (stage, kind), chains in self.kinds().items()}
        longest = self.longest
        return {
            "jobs": len(self.pieces),
            "processor_seconds": self.seconds,
            "by_kind": kinds,
            "workers": workers,
            "wall_seconds": self.wall(workers),
            "longest_job": longest and {"name": longest.name, "seconds": longest.longest / self.threads},
            "disk_bytes": self.disk,
            "memory_bytes": self.memory,
        }


def cost_of(experiment: Experiment) -> Cost:
    """What is left to do of an experiment, from figures that are measured now on a few of its own voxels."""
    fits, scores = pending(experiment)
    if not fits and not scores:
        return Cost([], 0.0, experiment.threads, 0, 0)
    return modelled(Model(experiment, Extent.of(experiment), measure(experiment)), fits, scores)


def modelled(model: Model, fits: Sequence[FitJob], scores: Sequence[FitJob]) -> Cost:
    """Cost of some searches and evaluations by a model."""
    threads = model.experiment.threads
    return Cost(model.pieces(fits, scores), model.rates.start, threads, model.extent.cache_bytes, model.memory)


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


def _work(chains: Sequence[Chain]) -> float:
    return sum(chain.seconds for chain in chains)
