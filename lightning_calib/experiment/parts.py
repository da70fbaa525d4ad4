"""Jobs that do part of another's work, for when there is room: one trial of a search, some cases of an evaluation.

Each leaves a file that the whole job takes up; what is missing the whole job does itself. So the result does not depend
on who did which part, and an interrupted job goes on with the parts that are there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment import layout
from lightning_calib.experiment.plan import EvaluationJob, FitJob
from lightning_calib.kit.files import digest
from lightning_calib.outputs.cache import FEATURES_OF, Kind
from lightning_calib.outputs.manifest import CaseRecord

TRIALS, PARTS = "trials", "evaluation"

# Voxels of a shard: enough that reading calibrators and starting a Trainer do not count (some 25 frames of CamVid).
# It decides how sums over several cases are taken, so it is the same for every executor.
SHARD_VOXELS = 2**22


@dataclass(frozen=True)
class PoolJob:
    """Pooled maps, features or distances to boundaries of some cases, for the cache beside the store."""

    kind: Kind
    case_ids: tuple[str, ...]

    def __str__(self) -> str:
        """One line for the progress display."""
        what = {"distance": "distances"} | {kind: f"features on {pooling}" for pooling, kind in FEATURES_OF.items()}
        made = what.get(self.kind, f"pooling {self.kind}")
        return f"{made} of {len(self.case_ids)} cases from {self.case_ids[0]}"


@dataclass(frozen=True)
class TrialJob:
    """One trial of a search."""

    fit: FitJob
    place: int

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"trial {self.place} of {self.fit}"


@dataclass(frozen=True)
class ShardJob:
    """Some test cases of an evaluation."""

    whole: EvaluationJob
    number: int
    case_ids: tuple[str, ...]

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"{self.whole}, {len(self.case_ids)} cases from {self.case_ids[0]}"


def kinds_of(name: PipelineName) -> list[Kind]:
    """Kinds of the maps that a pipeline reads.

    Example:
        >>> kinds_of(PipelineName.parse("ts(z)")), kinds_of(PipelineName.parse("fts(p)"))
        (['z'], ['p', 'features-p'])
    """
    features: list[Kind] = [FEATURES_OF[name.pooling]] if name.cls.looks_at == "features" else []
    return [name.pooling, *features]


def shards(cases: Iterable[CaseRecord], voxels: int = SHARD_VOXELS) -> list[tuple[str, ...]]:
    """Cases in groups of about as many voxels, in their order.

    Example:
        >>> cases = [CaseRecord(name, (size,), 0, "", name) for name, size in [("a", 3), ("b", 2), ("c", 4)]]
        >>> shards(cases, voxels=4)
        [('a', 'b'), ('c',)]
    """
    groups: list[list[str]] = []
    room = 0
    for case in cases:
        if room <= 0:
            groups.append([])
            room = voxels
        groups[-1].append(case.case_id)
        room -= prod(case.shape)
    return [tuple(group) for group in groups]


def trial_folder(folder: Path, fit_hash: str) -> Path:
    """Where the trials of a search are kept until its fit is written."""
    return folder / f"{TRIALS}-{fit_hash}"


def part_path(root: Path, shard: ShardJob, evaluation_hashes: Sequence[str]) -> Path:
    """Where the scores of a shard are kept until its evaluation is written."""
    key = digest([evaluation_hashes, shard.case_ids])
    name = f"{shard.whole.pooling}-{shard.number}-{key}.safetensors"
    return layout.repeat_folder(root, shard.whole.repeat) / PARTS / name
