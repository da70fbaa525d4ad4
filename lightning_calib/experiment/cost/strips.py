"""A few voxels of a store to measure on, and the processor time that work on them takes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lightning_calib.experiment.plan import Experiment
from lightning_calib.functional.boundary import boundary_distance
from lightning_calib.functional.features import FEATURES, make_features
from lightning_calib.functional.pooling import pool
from lightning_calib.outputs.cache import constant_share
from lightning_calib.outputs.store import OutputStore, StoredCase
from lightning_calib.solvers.base import Batch

# Values of the strips over all classes, and the cases they come from.
SAMPLE_VALUES, SAMPLE_CASES = 2**20, 4
ROUNDS = 2  # the shorter of so many measurements counts


def once(work: Callable[[], object]) -> float:
    """Processor seconds of some work."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def seconds_of(work: Callable[[], Any], per: Callable[[Any], int] = lambda found: 1) -> float:
    """Least processor seconds of some work, divided by what ``per`` says of its result."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        found = work()
        taken.append((time.process_time() - begin) / per(found))
    return min(taken)


@dataclass(frozen=True)
class Strips:
    """Strips of a store's cases.

    Attributes:
        store: where they come from.
        members: logits ``(M, C, *S)`` of each; pooled ones, M = 1, where the store keeps no others.
        batches: pooled logits ``(1, C, *S)``, labels and ids.
        ignore_index: label of voxels that do not count.
    """

    store: OutputStore
    members: list[Tensor]
    batches: list[Batch]
    ignore_index: int

    @classmethod
    def of(cls, experiment: Experiment) -> "Strips":
        """Strips from the middle of the first cases of ``cal``."""
        store = experiment.store
        manifest, cases = store.manifest, [store[name] for name in experiment.split(0).cal[:SAMPLE_CASES]]
        room = SAMPLE_VALUES // len(cases) // manifest.num_classes
        ignore = -1 if manifest.ignore_index is None else manifest.ignore_index
        strips = [_strip(case, room) for case in cases]
        members = [(c.pooled("z")[None] if c.logits is None else c.logits)[:, :, s] for c, s in strips]
        batches: list[Batch] = []
        for (case, rows), logits in zip(strips, members, strict=True):
            target = case.target if case.valid is None else case.target.where(case.valid, ignore)
            batches.append((pool(logits[None], "p"), target[None, rows].clone(), [case.case_id]))
        return cls(store, members, batches, ignore)

    @property
    def voxels(self) -> int:
        """Voxels of all strips."""
        return sum(batch[1].numel() for batch in self.batches)

    def with_features(self, names: Sequence[str]) -> "Strips":
        """The same with features, for calibrators that look at them."""
        if not names:
            return self
        featured: list[Batch] = [
            (*batch[:3], make_features(names, batch[0], logits[None]))
            for batch, logits in zip(self.batches, self.members, strict=True)
        ]
        return replace(self, batches=featured)

    def pooling(self, folder: Path) -> float:
        """Seconds a voxel of a pooled map: pooling, check, file."""
        if self.store.manifest.keep == "pooled":
            return 0.0

        def work() -> None:
            for logits in self.members:
                made = pool(logits[None], "p")[0]
                torch.aminmax(made)
                constant_share(made)
                save_file({"map": made}, folder / "map")

        return seconds_of(work) / self.voxels

    def features(self, folder: Path) -> float:
        """Seconds a voxel of the maps of all features."""

        def work() -> None:
            for logits in self.members:
                made = make_features(list(FEATURES), pool(logits[None], "p"), logits[None])[0]
                save_file({"map": made}, folder / "map")

        return seconds_of(work) / self.voxels

    def distances(self, folder: Path) -> float:
        """Seconds a voxel of the map of distances."""

        def work() -> None:
            for _, target, *_ in self.batches:
                save_file({"map": boundary_distance(target, self.ignore_index)[0]}, folder / "map")

        return seconds_of(work) / self.voxels


def _strip(case: StoredCase, room: int) -> tuple[StoredCase, slice]:
    """A case, and as many rows from its middle as have ``room`` voxels."""
    rows, width = case.shape[0], prod(case.shape[1:])
    taken = min(rows, max(1, room // width))
    return case, slice((rows - taken) // 2, (rows - taken) // 2 + taken)
