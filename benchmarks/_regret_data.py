"""What benchmarks/regret.py works on: some voxels of each stored case, divided by whole groups."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_calib.kit.files import atomic_path, sha256
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.partition import Split
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.solvers.sample import hashed_uniform

DISTANCES = "distances.safetensors"
TEST, VAL = 0.4, 0.2  # shares of the groups; the others are `cal`


@dataclass(frozen=True)
class Small:
    """A store of sampled voxels.

    Attributes:
        store: its cases have the shape ``(1, n)``, or ``(1, 1, n)`` in 3D; calibrators look at single voxels.
        distances: of each case, how far its voxels are from the boundary of the whole target.
    """

    store: OutputStore
    distances: dict[str, Tensor]

    def without(self, case_ids: Iterable[str]) -> "Part":
        """The store as if some cases did not exist."""
        return Part(self.store, set(case_ids))


class Part(OutputStore):
    """A store that has never heard of some of its cases: asking for one of them is an error."""

    def __init__(self, whole: OutputStore, hidden: set[str]) -> None:
        super().__init__(whole.path)
        kept = tuple(case for case in self.manifest.cases if case.case_id not in hidden)
        self.manifest = replace(self.manifest, cases=kept)
        self._records = {case.case_id: case for case in kept}


def shrink(outputs: Path, folder: Path, voxels: int) -> Small:
    """Take at most so many counted voxels of each case, those with the smallest hash of case and place.

    Args:
        outputs: the whole store.
        folder: where small stores are kept; one that is there already is used again.
        voxels: voxels a case.
    """
    path = folder / f"{sha256(outputs / MANIFEST)[:12]}-{voxels}"
    if not (path / DISTANCES).is_file():
        _write(OutputStore(outputs), path, voxels)
    return Small(OutputStore(path), load_file(path / DISTANCES))


def _write(store: OutputStore, path: Path, voxels: int) -> None:
    facts, cases = store.manifest, StoredCases(store, cache=False)
    writer = OutputWriter(
        path,
        facts.dataset,
        facts.class_names,
        facts.spatial_dims,
        facts.members,
        facts.background,
        facts.ignore_index,
        facts.representation,
        groups=store.groups,
    )
    distances: dict[str, Tensor] = {}
    for case in store:
        counted = cases.counted(case.case_id)
        if not len(counted):
            continue  # nothing to fit and nothing to judge
        chosen = counted[hashed_uniform(case.case_id, counted).argsort()[:voxels]]
        shape = (*(1 for _ in case.shape[1:]), len(chosen))
        assert case.logits is not None, f"{store.path} keeps pooled maps; predict with --outputs.keep members"
        logits = case.logits.flatten(2)[:, :, chosen].float()  # (M, C, n)
        writer.write(case.case_id, logits.view(*logits.shape[:2], *shape), case.target.flatten()[chosen].view(shape))
        distances[case.case_id] = cases.distance(case.case_id).flatten()[chosen].view(shape).contiguous()
    writer.finish()
    with atomic_path(path / DISTANCES) as aside:
        save_file(distances, aside)


def divide(groups: Mapping[str, str], number: int, seed: int = 0) -> Split:
    """Whole groups to ``cal``, ``val`` and ``test`` at random; a group counts as one, however many cases it has.

    Args:
        groups: group by case id.
        number: number of the division.
        seed: seed of all divisions.

    Example:
        >>> split = divide({f"{group}{n}": group for group in "abcde" for n in range(3)}, 0)
        >>> len(split.cal), len(split.val), len(split.test)
        (6, 3, 6)
    """
    names = sorted(set(groups.values()))
    order = [names[n] for n in np.random.default_rng([seed, number]).permutation(len(names))]
    test, val = max(1, round(TEST * len(names))), max(1, round(VAL * len(names)))
    parts = {"test": order[:test], "val": order[test : test + val], "cal": order[test + val :]}
    split = Split(
        **{part: tuple(sorted(c for c, g in groups.items() if g in own)) for part, own in parts.items()},
        repeat=number,
        seed=seed,
    )
    split.check_groups(groups)
    return split


def fitting_data(small: Small, split: Split) -> StoredOutputsDataModule:
    """``cal`` and ``val`` of a division; its test cases are not in the store that it is made of."""
    part = small.without(split.test)
    return StoredOutputsDataModule(part, cal=list(split.cal), val=list(split.val), test=[], group_aware=True)
