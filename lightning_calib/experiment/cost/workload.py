"""The work of an experiment: how much it reads, how long each of its jobs takes, what it needs of memory and disk.

The model multiplies what a voxel costs on this machine (:mod:`~lightning_calib.experiment.cost.rates`) by the voxels
that are read and by the passes that fits take. Passes alone are not measured on the spot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from typing import Literal, cast

from lightning_calib.calibrators import PipelineName, build
from lightning_calib.experiment.cost.rates import Rates
from lightning_calib.experiment.parts import SHARD_VOXELS
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.search.draws import rounds
from lightning_calib.experiment.search.sampled import takes_coreset
from lightning_calib.experiment.search.space import Space
from lightning_calib.experiment.selection.crossfit import STRENGTHS, TEMPERATURE_STRENGTHS
from lightning_calib.experiment.selection.folds import MAX_FOLDS, SAMPLE_VOXELS
from lightning_calib.experiment.selection.jobs import SelectionJob, candidates_of
from lightning_calib.experiment.selection.stacking import parts_of, with_parts
from lightning_calib.functional.features import FEATURES
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.cache import FEATURES_OF, FOLDER, CaseCache, Kind
from lightning_calib.outputs.manifest import SUFFIX
from lightning_calib.outputs.store import OutputStore
from lightning_calib.solvers.base import SolverName
from lightning_calib.solvers.coreset import CORESET_VOXELS
from lightning_calib.solvers.epochs import MAX_EPOCHS
from lightning_calib.solvers.stream import KEPT_BYTES

Stage = Literal["pooling", "search", "evaluation", "selection"]
STAGES: tuple[Stage, ...] = ("pooling", "search", "evaluation", "selection")

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


# Seen on 12 made-up scenes of 240 x 320 and 11 classes (benchmarks/experiment.py), 20 trials of the search space each;
# on CamVid fits of ms take 5 or 6 passes, those of cdc 9 to 22 (docs/results/camvid.md). Fits of ets took 12 passes on
# small scenes of 8 classes, 16 on a million voxels of 20 (docs/fitting.md).
PASSES = {
    "ts": Passes(5, 5),
    "ets": Passes(16, 16),
    "gs": Passes(7, 7),
    "vs": Passes(8, 4),
    "ms": Passes(9, 5),
    "ms_c": Passes(8, 5),
    "dc": Passes(9, 5),
    "cdc": Passes(11, 14, 0.8),
    "cms_ap": Passes(8, 7, 0.75),
    "cms_op": Passes(15, 8, 0.65),
}
OTHERS = Passes(10, 8)

# Passes over all voxels of a fit that starts at the optimum of a coreset (benchmarks/coreset.py).
WARM = 5

# Epochs after which fits of ``lts_ti`` by adam stopped, over draws of the search space, on 8 small crops of such
# scenes: a little more than their patience. Fits that go on improving take more, up to the limit that is set. Passes
# of lbfgs: those of benchmarks/local_fits.py.
EPOCHS = {"adam": (13, 21, 20, 24, 11, 51, 14, 51, 14), "lbfgs": (8, 12)}


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
        features: by pooling, voxels whose features are still to be made.
    """

    num_classes: int
    largest: int
    cal: float
    val: float
    test: float
    pooled: dict[Pooling, int]
    distances: int
    features: dict[Pooling, int] = field(default_factory=dict)

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
        names = [PipelineName.parse(name) for name in experiment.names]
        poolings = dict.fromkeys(name.pooling for name in names)
        featured = dict.fromkeys(name.pooling for name in names if name.cls.looks_at == "features")
        return cls(
            store.manifest.num_classes,
            max(sizes.values()),
            **parts,
            pooled={pooling: _missing(store, pooling, sizes) for pooling in poolings},
            features={pooling: _missing(store, FEATURES_OF[pooling], sizes) for pooling in featured},
            distances=_missing(store, "distance", {case: sizes[case] for split in splits for case in split.test}),
        )

    @property
    def cache_bytes(self) -> int:
        """What the maps beside the store will take."""
        features = len(FEATURES) * sum(self.features.values())
        return 4 * (self.num_classes * sum(self.pooled.values()) + self.distances + features)


def _missing(store: OutputStore, kind: Kind, sizes: dict[str, int]) -> int:
    """Voxels of the cases whose map is not there; none where maps are read from the cases themselves."""
    place = CaseCache(store).place(kind)
    if place is None:
        return 0
    folder = store.path / FOLDER / place
    return sum(voxels for case, voxels in sizes.items() if not (folder / f"{case}{SUFFIX}").is_file())


@dataclass(frozen=True)
class Piece:
    """A job with its length.

    Attributes:
        stage: when it is done.
        kind: what it is about: a map, a calibrator, a pooling.
        name: for people.
        seconds: its length, if one worker does it all.
        rounds: lengths of the tasks that it is cut into where there is room; tasks of a round run at the same time.
        local: whether it fits a calibrator that looks at neighbours; these are begun first.
    """

    stage: Stage
    kind: str
    name: str
    seconds: float
    rounds: tuple[tuple[float, ...], ...]
    local: bool = False


@dataclass(frozen=True)
class Model:
    """Lengths of an experiment's jobs, in seconds of processor time.

    Args:
        experiment: what is to be done; its store is not looked at.
        extent: how much there is to read.
        rates: what a voxel costs.
    """

    experiment: Experiment
    extent: Extent
    rates: Rates

    def pieces(
        self, fits: Sequence[FitJob], scores: Sequence[FitJob], selections: Sequence[SelectionJob] = ()
    ) -> list[Piece]:
        """All jobs, in the order in which they are handed out."""
        judged: dict[tuple[int, Pooling], list[FitJob]] = {}
        for job in scores:
            judged.setdefault((job.repeat, job.name.pooling), []).append(job)
        searches = sorted(map(self.search, fits), key=lambda piece: not piece.local)
        chosen = map(self.selection, selections)
        return [*self.pooling(), *searches, *map(self.evaluation, judged.values()), *chosen]

    def pooling(self) -> list[Piece]:
        """Maps that are made once and kept beside the store."""
        features = {str(FEATURES_OF[kind]): count for kind, count in self.extent.features.items()}
        pooled = {str(kind): count for kind, count in self.extent.pooled.items()}
        voxels = {**pooled, "distance": self.extent.distances, **features}
        rates = dict.fromkeys(voxels, self.rates.pooling) | {"distance": self.rates.distance}
        rates |= dict.fromkeys(features, self.rates.features)
        found = []
        for kind, count in voxels.items():
            work = count * rates[kind]
            if work:
                found.append(Piece("pooling", kind, kind, work, (_shards(work, SHARD_VOXELS * rates[kind]),)))
        return found

    def search(self, job: FitJob) -> Piece:
        """Search and fit of one pipeline."""
        extent, rates, kind = self.extent, self.rates, job.name.calibrator
        own = rates.calibrators[kind]
        around = rates.fit_job + rates.calibrators["identity"].judge * extent.val
        if job.stacked:
            parts = [PipelineName.parse(name).calibrator for name in parts_of(job.name.pooling)]
            work = around + self._crossfits(parts, extent.cal)
            return Piece("search", kind, str(job), work, ((work,),))
        if not own.solver:
            return Piece("search", kind, str(job), around, ((around,),))
        searched = bool(Space.of(build(kind, extent.num_classes), own.solver).names)
        trials = self.experiment.trials_of(job) if searched else 0
        trial, first, final, prepare = self._fit(job)
        last = around + (final if searched else first)
        if not searched:
            return Piece("search", kind, str(job), prepare + last, ((prepare + last,),), job.local)
        whole = around + prepare + first + trials * trial + last
        begun, *later = [len(places) for places in rounds(trials)]
        tried = [(prepare + first + trial,) * begun, *((prepare + trial,) * count for count in later)]
        return Piece("search", kind, str(job), whole, (*tried, (prepare + last,)), job.local)

    def evaluation(self, jobs: Sequence[FitJob]) -> Piece:
        """Scores of all pipelines of a pooling in one repeat; shards are brought together at the end."""
        voxel = sum(self.rates.calibrators[job.name.calibrator].score for job in jobs)
        pooling, repeat, fixed = jobs[0].name.pooling, jobs[0].repeat, self.rates.evaluation_job
        name = f"evaluation of {len(jobs)} pipelines on {pooling}, repeat {repeat}"
        work = voxel * self.extent.test
        shards = tuple(fixed + seconds for seconds in _shards(work, voxel * SHARD_VOXELS))
        merged = ((fixed,),) if len(shards) > 1 else ()
        return Piece("evaluation", pooling, name, fixed + work, (shards, *merged))

    def selection(self, job: SelectionJob) -> Piece:
        """Cross-fits of the candidates on a sample of voxels, the fit of one on all, and its scores on ``test``."""
        names = [PipelineName.parse(name).calibrator for name in with_parts(candidates_of(self.experiment))]
        voxels = self.extent.cal + self.extent.val + (self.extent.test if job.repeat is None else 0.0)
        work = self._crossfits(names, voxels) + self.rates.evaluation_job
        if job.repeat is not None:
            work += 2 * max(self.rates.calibrators[name].score for name in names) * self.extent.test
        return Piece("selection", "by groups", str(job), work, ((work,),))

    def _crossfits(self, names: Sequence[str], voxels: float) -> float:
        """Seconds of candidates without each fold along their strengths, and of the largest of them on all voxels."""
        sample, found, last = min(voxels, float(SAMPLE_VOXELS)), 0.0, 0.0
        for name in names:
            own, passes = self.rates.calibrators[name], PASSES.get(name, OTHERS)
            strengths = len(TEMPERATURE_STRENGTHS if name == "ts" else STRENGTHS) - 1 if own.solver else 0
            a_pass = passes.share * own.each
            found += strengths * sample * (MAX_FOLDS * passes.trial * a_pass + own.judge)
            last = max(last, voxels * (own.prepare + passes.first * a_pass))
        return found + last

    def _fit(self, job: FitJob) -> tuple[float, float, float, float]:
        """Seconds of a trial, of what comes before, of the selected fit, and of what a process prepares once."""
        own, extent = self.rates.calibrators[job.name.calibrator], self.extent
        if own.solver in EPOCHS:
            epochs, stops = self.experiment.epochs_of(job, MAX_EPOCHS), EPOCHS[own.solver]
            mean = sum(min(epochs, stop) for stop in stops) / len(stops)
            trial = mean * (own.each * extent.cal + own.step + own.judge * extent.val)
            return trial, 0.0, trial, 0.0
        passes = PASSES.get(job.name.calibrator, OTHERS)
        room = KEPT_BYTES / own.kept if own.kept else 0.0  # voxels that stay prepared, those of cal first
        again_cal, again_val = max(0.0, extent.cal - room), max(0.0, extent.val - max(0.0, room - extent.cal))

        def fit(count: float) -> float:
            voxels = own.first * extent.cal + count * (passes.share * own.each * extent.cal + own.prepare * again_cal)
            return voxels + own.begin + (count - 1) * own.step + own.judge * extent.val + own.prepare * again_val

        prepare = own.prepare * (extent.cal - again_cal + extent.val - again_val)
        if not self._samples(job):
            return fit(passes.trial), fit(passes.first), fit(passes.trial), prepare

        def on_coreset(count: float) -> float:
            return CORESET_VOXELS * (count * own.each + own.judge) + own.begin + (count - 1) * own.step

        trial, drawn = on_coreset(passes.trial), 2 * own.first * (extent.cal + extent.val)
        return trial, drawn + on_coreset(passes.first) + fit(WARM + 1), trial + fit(WARM) + fit(0), prepare

    def _samples(self, job: FitJob) -> bool:
        """Whether trials see a coreset."""
        own, kind = self.rates.calibrators[job.name.calibrator], job.name.calibrator
        fresh = partial(build, kind, self.extent.num_classes)
        return takes_coreset(self.experiment.search, int(self.extent.cal), fresh, cast(SolverName, own.solver))

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
