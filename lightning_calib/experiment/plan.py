"""What an experiment is to do: its settings, its jobs, their seeds, and the hashes that tell what is done already."""

import platform
import zlib
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from lightning_calib.calibrators import build
from lightning_calib.calibrators.pipeline import PipelineName, expand_pipelines
from lightning_calib.experiment.layout import RESULTS_VERSION
from lightning_calib.experiment.search.draws import rounds
from lightning_calib.experiment.search.sampled import SearchOn, takes_coreset
from lightning_calib.functional.boundary import BANDS
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import digest, sha256
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.partition import Size, Sizes, Split, make_split, whole_groups
from lightning_calib.outputs.store import OutputStore, refuse_unlabelled
from lightning_calib.outputs.stored import Outside, StoredOutputsDataModule
from lightning_calib.solvers import SolverName
from lightning_calib.solvers.coreset import CORESET_VOXELS

if TYPE_CHECKING:
    from lightning_calib.experiment.cost.estimate import Cost
    from lightning_calib.experiment.results import Results

SelectionBy = Literal["auto", "paper", "groups"]

_PACKAGES = ("lightning-calib", "torch", "pytorch-lightning", "numpy", "scipy", "optuna")


@dataclass(frozen=True)
class FitJob:
    """Search and fit of one pipeline in one repeat."""

    repeat: int
    pipeline: str

    @property
    def name(self) -> PipelineName:
        """The pipeline's parts."""
        return PipelineName.parse(self.pipeline)

    @property
    def local(self) -> bool:
        """Whether the calibrator looks at neighbours: it is fitted by adam over whole images, which takes longest."""
        return self.name.cls.looks_at == "neighbourhood"

    @property
    def stacked(self) -> bool:
        """Whether the calibrator is put together from others."""
        return self.name.cls.solver == "stacking"

    def seed(self, seed: int) -> int:
        """The job's own seed, from the experiment's seed, the repeat and the pipeline.

        Example:
            >>> FitJob(0, "ts(z)").seed(0) == FitJob(0, "ts(z)").seed(0) != FitJob(1, "ts(z)").seed(0)
            True
        """
        words = [seed, self.repeat, zlib.crc32(self.pipeline.encode())]
        return int(np.random.SeedSequence(words).generate_state(1)[0])

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"{self.pipeline}, repeat {self.repeat}"


@dataclass(frozen=True)
class EvaluationJob:
    """Scores of all pipelines of one pooling in one repeat: their test cases are read once."""

    repeat: int
    pooling: Pooling
    pipelines: tuple[str, ...]

    @property
    def fits(self) -> list[FitJob]:
        """The fits that are judged."""
        return [FitJob(self.repeat, name) for name in self.pipelines]

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"{len(self.pipelines)} pipelines on {self.pooling}, repeat {self.repeat}"


@dataclass(frozen=True)
class Experiment:
    """Pipelines x repeats on one store of frozen outputs.

    Args:
        outputs: folder of the frozen outputs, such as runs/camvid/outputs, or the opened store.
        pipelines: ``paper``, ``all``, or names such as cms_op(p), as a list or with commas in between.
        repeats: number of random partitions.
        trials: trials of the search, for each repeat and pipeline.
        cal: size of the calibration part: a number of cases, a share, ids, a file of ids, or None for the rest.
        val: size of the validation part.
        test: size of the test part.
        seed: seed of partitions, searches, fits and bootstraps.
        group_aware: keep cases of one group in one part, at the level that the data set keeps whole.
        group_level: keep groups of this level whole, such as site; None leaves it to ``group_aware``.
        outside: what voxels that were never predicted count as.
        solver: ``auto`` for the exact one of each calibrator, or ``adam`` for the paper's.
        lts_trials: trials for calibrators that look at neighbours or are fitted by lbfgs (``lts``, ``lts_ti``,
            ``fts_net``), which takes longest; None for ``trials``.
        lts_epochs: largest number of epochs of such calibrators.
        threads: threads that each job uses.
        members: size of the ensemble: its first members count; None for all.
        selection: how the pipeline to deploy is chosen: by the lowest NLL on ``val`` (``paper``), or by a ladder of
            tests over the ``groups`` of ``cal`` and ``val``, which then stay whole; ``auto`` takes groups where the
            outputs have any.
        search: what trials of a search see of large data: a ``coreset``, a sample of voxels with weights, or all
            voxels (``exact``), which takes many times as long. The selected strengths are fitted on all voxels.
        calibration: where results go; by default a folder named calibration beside the outputs.

    Example:
        >>> experiment = Experiment("runs/camvid/outputs", pipelines="paper", repeats=3)  # doctest: +SKIP
        >>> results = experiment.run(logger="wandb")  # doctest: +SKIP
    """

    outputs: str | Path | OutputStore
    pipelines: str | list[str] = "paper"
    repeats: int = 3
    trials: int = 20
    cal: Size = 0.5
    val: Size = 0.2
    test: Size = None
    seed: int = 0
    group_aware: bool = False
    group_level: str | None = None
    outside: Outside = "exclude"
    solver: SolverName = "auto"
    lts_trials: int | None = None
    lts_epochs: int = 300
    threads: int = 1
    members: int | None = None
    selection: SelectionBy = "auto"
    search: SearchOn = "coreset"
    calibration: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name, value, least in (("repeats", self.repeats, 1), ("trials", self.trials, 1), ("seed", self.seed, 0)):
            if value < least:
                raise ValueError(f"{name} = {value}; give at least {least}")
        if self.lts_trials is not None and self.lts_trials < 1:
            raise ValueError(f"lts_trials = {self.lts_trials}; give at least 1")
        if not self.names:
            raise ValueError("no pipelines; name some, such as --pipelines paper")

    @classmethod
    def of_settings(cls, settings: dict[str, Any], **changes: Any) -> Self:
        """The experiment that ``settings.json`` describes, with changes; settings of other versions are passed over."""
        own = {entry.name: settings[entry.name] for entry in fields(cls) if entry.name in settings}
        first = {"selection": "paper", "search": "exact"}  # the first versions knew nothing else
        return cls(**(first | own | changes))

    def run(self, **options: Any) -> "Results":
        """Run it, or go on with it; the options are those of :func:`~lightning_calib.experiment.run.run_experiment`."""
        from lightning_calib.experiment.run import run_experiment

        return run_experiment(self, **options)

    def cost(self) -> "Cost":
        """What is left to do of it, in processor time, disk and memory, from figures measured now on a few voxels."""
        from lightning_calib.experiment.cost.estimate import cost_of

        return cost_of(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the pipelines, each once, in the order of the table."""
        return tuple(str(name) for name in expand_pipelines(self.pipelines))

    @cached_property
    def store(self) -> OutputStore:
        """The frozen outputs; those without targets are refused."""
        if isinstance(self.outputs, OutputStore):
            store = self.outputs if self.members is None else OutputStore(self.outputs.path, self.members)
        else:
            store = OutputStore(self.outputs, self.members)
        refuse_unlabelled(store.manifest, store.path)
        return store

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.calibration or self.store.path.resolve().parent / "calibration"

    @property
    def jobs(self) -> list[FitJob]:
        """All repeats and pipelines, in the order of the results."""
        return [FitJob(repeat, name) for repeat in range(self.repeats) for name in self.names]

    def trials_of(self, job: FitJob) -> int:
        """Trials that a job gets."""
        slow = job.local or job.name.cls.solver == "lbfgs"
        return self.lts_trials if slow and self.lts_trials is not None else self.trials

    def epochs_of(self, job: FitJob, default: int) -> int:
        """Most epochs that a job gets of adam."""
        return self.lts_epochs if job.local else default

    @property
    def by_groups(self) -> bool:
        """Whether the pipeline to deploy is chosen by groups."""
        return self.selection == "groups" or (self.selection == "auto" and bool(self.store.group_levels))

    @property
    def keeps_groups(self) -> bool:
        """Whether groups stay whole: a selection by groups is judged on groups that no fit has seen."""
        return self.group_aware or (self.by_groups and self.group_level is None)

    @property
    def groups(self) -> dict[str, str] | None:
        """Groups that stay whole, by case id; None where cases are divided one by one."""
        return whole_groups(self.store, self.keeps_groups, self.group_level)

    def split(self, repeat: int) -> Split:
        """Cases of the parts of a repeat."""
        return make_split(self.store, repeat, Sizes(self.cal, self.val, self.test), self.seed, self.groups)

    def data(self, repeat: int, pooling: Pooling) -> StoredOutputsDataModule:
        """The outputs as a job sees them."""
        return StoredOutputsDataModule(
            self.store,
            pooling,
            repeat,
            self.cal,
            self.val,
            self.test,
            seed=self.seed,
            group_aware=self.keeps_groups,
            group_level=self.group_level,
            outside=self.outside,
        )

    @cached_property
    def outputs_hash(self) -> str:
        """Hash of the manifest, which holds the hashes of all cases."""
        return sha256(self.store.path / MANIFEST)

    def fit_hash(self, job: FitJob) -> str:
        """Hash of everything that a fit depends on; the thread count is not part of it."""
        local = {"lts_epochs": self.lts_epochs} if job.local else {}
        fewer = {} if self.members is None else {"members": self.members}
        later = rounds(self.trials_of(job))[1:]  # earlier versions drew these one by one
        drawn = {"rounds": [len(places) for places in later]} if later else {}
        experts = {"penalty": "mean"} if job.name.cls.conditional else {}  # earlier versions took the sum over experts
        split = self.split(job.repeat)
        coreset = {"coreset": CORESET_VOXELS} if self.samples(job, sum(map(self._voxels, split.cal))) else {}
        return digest(
            {
                "version": RESULTS_VERSION,
                "outputs": self.outputs_hash,
                "task": asdict(job),
                "seed": self.seed,
                "cal": split.cal,
                "val": split.val,
                "outside": self.outside,
                "solver": self.solver,
                "trials": self.trials_of(job),
                **local,
                **fewer,
                **drawn,
                **experts,
                **coreset,
            }
        )

    def samples(self, job: FitJob, voxels: float) -> bool:
        """Whether the trials of a job see a coreset of ``cal`` with so many voxels."""
        classes, dims = self.store.manifest.num_classes, self.store.manifest.spatial_dims
        return takes_coreset(self.search, int(voxels), lambda: build(job.name.calibrator, classes, dims), self.solver)

    def _voxels(self, case_id: str) -> int:
        return prod(self.store[case_id].record.shape)

    def evaluation_hash(self, job: FitJob) -> str:
        """Hash of everything that the scores of a fit depend on."""
        test = self.split(job.repeat).test
        return digest({"fit": self.fit_hash(job), "test": test, "bands": str(BANDS), "scores": SCORES.names()})

    def describe(self) -> dict[str, Any]:
        """``settings.json``: the settings, the data set's facts and the versions of what computes."""
        manifest = self.store.manifest
        dataset = {
            "name": manifest.dataset,
            "class_names": list(manifest.class_names),
            "num_classes": manifest.num_classes,
            "background": manifest.background,
            "ignore_index": manifest.ignore_index,
            "spatial_dims": manifest.spatial_dims,
            "num_members": manifest.num_members,
            "num_cases": len(self.store),
            **({"folds": len(manifest.folds)} if manifest.out_of_fold else {}),
        }
        versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "calibration"}
        return {
            "format_version": RESULTS_VERSION,
            **settings,
            "selection": "groups" if self.by_groups else "paper",
            "group_aware": self.keeps_groups,
            "outputs": str(self.store.path),
            "pipelines": list(self.names),
            "outputs_sha256": self.outputs_hash,
            "dataset": dataset,
            "bands": list(BANDS),
            "versions": versions,
        }
