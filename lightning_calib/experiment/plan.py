"""What a run is to do: its settings, its tasks, their seeds, and the hashes that tell what is done already."""

import platform
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName, expand_pipelines
from lightning_calib.experiment.layout import RESULTS_VERSION
from lightning_calib.functional.boundary import BANDS
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import digest, sha256
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.partition import Size, Sizes, Split, make_split
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import Outside, StoredOutputsDataModule
from lightning_calib.solvers.fit import Solver

_PACKAGES = ("lightning-calib", "torch", "pytorch-lightning", "numpy", "scipy", "optuna")


@dataclass(frozen=True)
class Task:
    """One pipeline in one repeat."""

    repeat: int
    pipeline: str

    @property
    def name(self) -> PipelineName:
        """The pipeline's parts."""
        return PipelineName.parse(self.pipeline)

    @property
    def local(self) -> bool:
        """Whether its calibrator looks at neighbours: it is then fitted over whole images, which takes long."""
        return self.name.cls.looks_at == "neighbourhood"

    def seed(self, seed: int) -> int:
        """The task's own seed, from the run's seed, the repeat and the pipeline.

        Example:
            >>> Task(0, "ts(z)").seed(0) == Task(0, "ts(z)").seed(0) != Task(1, "ts(z)").seed(0)
            True
        """
        words = [seed, self.repeat, zlib.crc32(self.pipeline.encode())]
        return int(np.random.SeedSequence(words).generate_state(1)[0])


@dataclass(frozen=True)
class Protocol:
    """Settings of a run.

    Args:
        outputs: folder of the frozen outputs, such as runs/camvid/outputs.
        pipelines: ``paper``, ``all``, or names such as cms_op(p), as a list or parted by commas.
        repeats: number of random partitions.
        trials: trials of the search, for each repeat and pipeline.
        cal: size of the calibration part: a number of cases, a share, ids, a file of ids, or None for the rest.
        val: size of the validation part.
        test: size of the test part.
        seed: seed of partitions, searches, fits and bootstraps.
        group_aware: keep cases of one group in one part.
        outside: what voxels that were never predicted count as.
        solver: ``auto`` for the exact one of each calibrator, or ``adam`` for the paper's.
        lts_trials: trials for local temperature scaling, which is slow on CPUs; None for ``trials``.
        lts_epochs: largest number of epochs of local temperature scaling.
        threads: threads a task.
        members: take the first so many members for the ensemble; None for all.
    """

    outputs: str
    pipelines: str | list[str] = "paper"
    repeats: int = 3
    trials: int = 20
    cal: Size = 50
    val: Size = 0.2
    test: Size = None
    seed: int = 0
    group_aware: bool = False
    outside: Outside = "exclude"
    solver: Solver = "auto"
    lts_trials: int | None = None
    lts_epochs: int = 300
    threads: int = 1
    members: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name, value, least in (("repeats", self.repeats, 1), ("trials", self.trials, 1), ("seed", self.seed, 0)):
            if value < least:
                raise ValueError(f"{name} = {value}; give at least {least}")
        if self.lts_trials is not None and self.lts_trials < 1:
            raise ValueError(f"lts_trials = {self.lts_trials}; give at least 1")
        if not self.names:
            raise ValueError("no pipelines; name some, such as --pipelines paper")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the pipelines, each once, in the order of the table."""
        return tuple(str(name) for name in expand_pipelines(self.pipelines))

    @cached_property
    def store(self) -> OutputStore:
        """The frozen outputs."""
        return OutputStore(self.outputs, self.members)

    @property
    def tasks(self) -> list[Task]:
        """All repeats and pipelines, in the order of the results."""
        return [Task(repeat, name) for repeat in range(self.repeats) for name in self.names]

    def trials_of(self, task: Task) -> int:
        """Trials that a task gets."""
        if task.local and self.lts_trials is not None:
            return self.lts_trials
        return self.trials

    def split(self, repeat: int) -> Split:
        """Cases of the parts of a repeat."""
        groups = self.store.groups if self.group_aware else None
        return make_split(self.store, repeat, Sizes(self.cal, self.val, self.test), self.seed, groups)

    def data(self, repeat: int, pooling: Pooling) -> StoredOutputsDataModule:
        """The outputs as a task sees them."""
        return StoredOutputsDataModule(
            self.store,
            pooling,
            repeat,
            self.cal,
            self.val,
            self.test,
            seed=self.seed,
            group_aware=self.group_aware,
            outside=self.outside,
        )

    @cached_property
    def outputs_hash(self) -> str:
        """Hash of the manifest, which holds the hashes of all cases."""
        return sha256(self.store.path / MANIFEST)

    def fit_hash(self, task: Task) -> str:
        """Hash of everything that a task's fit depends on; the thread count is not part of it."""
        local = {"lts_epochs": self.lts_epochs} if task.local else {}
        fewer = {} if self.members is None else {"members": self.members}
        split = self.split(task.repeat)
        return digest(
            {
                "version": RESULTS_VERSION,
                "outputs": self.outputs_hash,
                "task": asdict(task),
                "seed": self.seed,
                "cal": split.cal,
                "val": split.val,
                "outside": self.outside,
                "solver": self.solver,
                "trials": self.trials_of(task),
                **local,
                **fewer,
            }
        )

    def evaluation_hash(self, task: Task) -> str:
        """Hash of everything that a task's scores depend on."""
        return digest({"fit": self.fit_hash(task), "test": self.split(task.repeat).test, "bands": str(BANDS)})

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
        }
        versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
        own = asdict(self)
        return {
            "format_version": RESULTS_VERSION,
            **own,
            "pipelines": list(self.names),
            "outputs_sha256": self.outputs_hash,
            "dataset": dataset,
            "bands": list(BANDS),
            "versions": versions,
        }
