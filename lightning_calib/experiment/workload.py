"""The work of an experiment: how much it reads, how long each of its jobs takes, what it needs of memory and disk.

The model multiplies what a voxel costs on this machine (:mod:`~lightning_calib.experiment.rates`) by the voxels that
are read and by the passes that fits take. Passes alone are not measured on the spot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

from lightning_calib.calibrators import PipelineName, build
from lightning_calib.experiment.draws import rounds
from lightning_calib.experiment.parts import SHARD_VOXELS
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.rates import Rates
from lightning_calib.experiment.schedule import Chain
from lightning_calib.experiment.space import Space
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.cache import FOLDER
from lightning_calib.outputs.manifest import SUFFIX
from lightning_calib.outputs.store import OutputStore
from lightning_calib.solvers.adam import MAX_EPOCHS
from lightning_calib.solvers.stream import KEPT_BYTES

Stage = Literal["pooling", "search", "evaluation"]
STAGES: tuple[Stage, ...] = ("pooling", "search", "evaluation")

# Bytes for each logit of a case while adam takes a step on it, or while it is scored.
ADAM_BYTES, SCORE_BYTES = 60, 40


@dataclass(frozen=True)
class Passes:
    """Passes of full-batch fits: the one constant of the model that data decide and nobody knows before.

    Attributes:
        first: passes of a fit that starts at the identity.
        trial: passes of one that starts at the optimum for other strengths.
        share: part of the voxels that an average pass reads: experts that are done are passed over.
    """

    first: float
    trial: float
    share: float = 1.0


PASSES = {
    "ts": Passes(4, 4),
    "ets": Passes(22, 22),
    "vs": Passes(5, 4),
    "ms": Passes(6, 5),
    "ms_c": Passes(6, 5),
    "dc": Passes(6, 5),
    "cdc": Passes(15, 14, 0.6),
    "cms_ap": Passes(9, 8, 0.6),
    "cms_op": Passes(9, 8, 0.6),
}
OTHERS = Passes(10, 8)


@dataclass(frozen=True)
class Extent:
    """How much data an experiment reads.

    Attributes:
        num_classes: C.
        largest: voxels of the largest case.
        cal: voxels of ``cal`` in a repeat, on average.
        val: voxels of ``val``.
        test: voxels of ``test``.
        pooled: by pooling, voxels whose pooled map is still to be made.
        distances: voxels whose distance to the boundary is still to be computed.
    """

    num_classes: int
    largest: int
    cal: float
    val: float
    test: float
    pooled: dict[Pooling, int]
    distances: int

    @classmethod
    def of(cls, experiment: Experiment) -> "Extent":
        """What an experiment reads of its store."""
        store = experiment.store
        sizes = {case.case_id: prod(case.shape) for case in store.manifest.cases}
        splits = [experiment.split(repeat) for repeat in range(experiment.repeats)]
        parts = {
            part: sum(sizes[case] for split in splits for case in getattr(split, part)) / len(splits)
            for part in ("cal", "val", "test")
        }
        poolings = dict.fromkeys(PipelineName.parse(name).pooling for name in experiment.names)
        return cls(
            store.manifest.num_classes,
            max(sizes.values()),
            **parts,
            pooled={pooling: _missing(store, _kind(store, pooling), sizes) for pooling in poolings},
            distances=_missing(store, "distance", {case: sizes[case] for split in splits for case in split.test}),
        )

    @property
    def cache_bytes(self) -> int:
        """What the maps beside the store will take."""
        return 4 * (self.num_classes * sum(self.pooled.values()) + self.distances)


def _kind(store: OutputStore, pooling: Pooling) -> str | None:
    """Folder of a pooling's maps in the cache; None where they are read from the cases themselves."""
    if store.manifest.keep == "pooled" or pooling == "p0":
        return None
    fewer = store.manifest.num_members < store.stored_members
    return f"{pooling}-{store.manifest.num_members}" if fewer else pooling


def _missing(store: OutputStore, kind: str | None, sizes: dict[str, int]) -> int:
    """Voxels of the cases whose map is not there."""
    if kind is None:
        return 0
    folder = store.path / FOLDER / kind
    return sum(voxels for case, voxels in sizes.items() if not (folder / f"{case}{SUFFIX}").is_file())


@dataclass(frozen=True)
class Piece:
    """A job with its length: a chain of one task, or of many where it is split."""

    stage: Stage
    kind: str
    chain: Chain


@dataclass(frozen=True)
class Model:
    """Lengths of an experiment's jobs, in seconds of processor time.

    Args:
        experiment: what is to be done; its store is not looked at.
        extent: how much there is to read.
        rates: what a voxel costs.
        split: cut searches into trials, evaluations into shards of cases, as an executor with many workers does.
    """

    experiment: Experiment
    extent: Extent
    rates: Rates
    split: bool = False

    def pieces(self, fits: Sequence[FitJob], scores: Sequence[FitJob]) -> list[Piece]:
        """All jobs, in the order in which they are handed out."""
        searches = [Piece("search", job.name.calibrator, self.search(job)) for job in fits]
        searches.sort(key=lambda piece: -piece.chain.longest)
        judged: dict[tuple[int, Pooling], list[FitJob]] = {}
        for job in scores:
            judged.setdefault((job.repeat, job.name.pooling), []).append(job)
        evaluations = [Piece("evaluation", pooling, self.evaluation(jobs)) for (_, pooling), jobs in judged.items()]
        return [*self.pooling(), *searches, *evaluations]

    def pooling(self) -> list[Piece]:
        """Maps that are made once and kept beside the store."""
        seconds = {pooling: voxels * self.rates.pooling for pooling, voxels in self.extent.pooled.items() if voxels}
        if self.extent.distances:
            seconds["distance"] = self.extent.distances * self.rates.distance  # type: ignore[index]
        shard = SHARD_VOXELS * self.rates.pooling
        return [Piece("pooling", name, Chain(name, (_shards(work, shard),))) for name, work in seconds.items()]

    def search(self, job: FitJob) -> Chain:
        """Search and fit of one pipeline."""
        extent, rates = self.extent, self.rates
        own = rates.calibrators[job.name.calibrator]
        around = rates.fit_job + 2 * rates.calibrators["identity"].judge * extent.val
        if not own.solver:
            return Chain(str(job), ((around,),))
        searched = bool(Space.of(build(job.name.calibrator, extent.num_classes), own.solver).names)
        trials = self.experiment.trials_of(job) if searched else 1
        one, first, prepare = self._fit(job, searched)
        last = around + one
        if not searched:
            return Chain(str(job), ((prepare + last,),))
        if not self.split or trials == 1:
            return Chain(str(job), ((prepare + first + trials * one + last,),))
        tried = [(prepare + one,) * len(places) for places in rounds(trials)]
        return Chain(str(job), ((prepare + first,), *tried, (prepare + last,)))

    def evaluation(self, jobs: Sequence[FitJob]) -> Chain:
        """Scores of all pipelines of a pooling in one repeat."""
        voxel = sum(self.rates.calibrators[job.name.calibrator].score for job in jobs)
        name = f"evaluation of {len(jobs)} pipelines on {jobs[0].name.pooling}, repeat {jobs[0].repeat}"
        fixed = self.rates.evaluation_job
        shards = _shards(voxel * self.extent.test, voxel * SHARD_VOXELS if self.split else None)
        return Chain(name, (tuple(fixed + seconds for seconds in shards),))

    def _fit(self, job: FitJob, searched: bool) -> tuple[float, float, float]:
        """Seconds of a trial, of the fit that trials start from, and of what is prepared once a search."""
        own, extent = self.rates.calibrators[job.name.calibrator], self.extent
        if own.solver == "adam":
            epochs = self.experiment.epochs_of(job, MAX_EPOCHS)
            return epochs * (own.each * extent.cal + own.judge * extent.val), 0.0, 0.0
        passes = PASSES.get(job.name.calibrator, OTHERS)
        room = KEPT_BYTES / own.kept if own.kept else 0.0  # voxels that stay prepared, those of cal first
        again_cal, again_val = max(0.0, extent.cal - room), max(0.0, extent.val - max(0.0, room - extent.cal))

        def fit(count: float) -> float:
            voxels = own.first * extent.cal + count * (passes.share * own.each * extent.cal + own.prepare * again_cal)
            return voxels + count * own.step + own.judge * extent.val + own.prepare * again_val

        prepare = own.prepare * (extent.cal - again_cal + extent.val - again_val)
        return (fit(passes.trial), fit(passes.first), prepare) if searched else (fit(passes.first), 0.0, prepare)

    @property
    def memory(self) -> int:
        """Bytes of the largest worker: a process, the voxels that a search keeps, or one case as it is computed on."""
        extent, kinds = self.extent, self.rates.calibrators.values()
        kept = max(min(KEPT_BYTES, own.kept * (extent.cal + extent.val)) for own in kinds)
        adam = any(own.solver == "adam" for own in kinds)
        case = extent.largest * extent.num_classes * (ADAM_BYTES if adam else SCORE_BYTES)
        return self.rates.memory + int(max(kept, case))


def _shards(seconds: float, most: float | None) -> tuple[float, ...]:
    """Work in equal shards of at most so many seconds."""
    count = 1 if not most else max(1, ceil(seconds / most))
    return (seconds / count,) * count
