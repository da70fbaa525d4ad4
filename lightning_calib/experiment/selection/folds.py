"""Folds of whole groups, and a sample of their voxels that many fits share.

A voxel is drawn by a hash of its case and index, with a probability that grows with the share ``1 - p_y`` that the
pooled map missed: nearly all of the NLL and of its gradient lies in few voxels. It then counts as the inverse of that
probability (Fithian & Hastie 2014, "Local case-control sampling", with weights).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_calib.datasets.splits import make_folds
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers.base import Batch
from lightning_calib.solvers.sample import hashed_uniform

MIN_GROUPS, MAX_FOLDS = 5, 10

# Voxels over all cases: some seconds for the fits of a pipeline on all folds.
SAMPLE_VOXELS = 2**18

# What a voxel without any loss counts when voxels are drawn, against 1 for one whose label got probability 0.
FLOOR = 0.02


def choose_level(levels: Sequence[Mapping[str, str]], case_ids: Sequence[str]) -> int | None:
    """The first level, coarsest first, at which the cases fall into enough groups; None where there is none.

    Example:
        >>> site, patient = {f"{i}": str(i // 3) for i in range(9)}, {f"{i}": str(i) for i in range(9)}
        >>> choose_level([site, patient], list(site)), choose_level([site], list(site))
        (1, None)
    """
    enough = (n for n, groups in enumerate(levels) if len({groups[i] for i in case_ids}) >= MIN_GROUPS)
    return next(enough, None)


def group_weights(case_ids: Sequence[str], groups: Mapping[str, str]) -> dict[str, float]:
    """Weights of cases that make the mean over groups of the mean over their cases; a group weighs 1.

    Example:
        >>> group_weights(["a", "b", "c"], {"a": "x", "b": "x", "c": "y"})
        {'a': 0.5, 'b': 0.5, 'c': 1.0}
    """
    names = [groups[case_id] for case_id in case_ids]
    return {case_id: 1 / names.count(groups[case_id]) for case_id in case_ids}


@dataclass(frozen=True)
class Fold:
    """Sampled voxels of the groups of a fold, in one piece.

    Attributes:
        name: stands for a case id.
        logits: pooled ``(1, C, n)``.
        target: labels ``(1, n)``.
        weight: what each voxel counts ``(n,)``, float64; those of a group add up to 1.
        group: number of the group of each voxel ``(n,)``.
        features: ``(1, F, n)``, where some were asked for.
    """

    name: str
    logits: Tensor
    target: Tensor
    weight: Tensor
    group: Tensor
    features: Tensor | None = None

    @property
    def num_groups(self) -> int:
        """How many groups it holds."""
        return len(set(self.group.tolist()))

    @property
    def batch(self) -> Batch:
        """As solvers take it."""
        return self.logits, self.target, [self.name], self.features


class FoldedVoxels:
    """A sample of the voxels of some cases, by folds of groups.

    Args:
        cases: where voxels come from.
        case_ids: the cases to use.
        groups: group of each case.
        seed: seed of the folds.
        voxels: how many voxels to take, over all cases.

    Attributes:
        groups: names of the groups; ``Fold.group`` counts them.
        folds: names of the groups in each fold.
    """

    def __init__(
        self,
        cases: StoredCases,
        case_ids: Sequence[str],
        groups: Mapping[str, str],
        seed: int = 0,
        voxels: int = SAMPLE_VOXELS,
    ) -> None:
        counted = [case_id for case_id in case_ids if len(cases.counted(case_id))]
        self.cases, self.group_of = cases, {case_id: groups[case_id] for case_id in counted}
        self.groups = tuple(sorted(set(self.group_of.values())))
        self.folds = make_folds(self.groups, seed, MAX_FOLDS)
        shares = group_weights(counted, groups)
        self.index: dict[str, Tensor] = {}
        self.weight: dict[str, Tensor] = {}
        for case_id in counted:
            self.index[case_id], weight = draw(cases, case_id, max(1, voxels // len(counted)))
            self.weight[case_id] = weight * shares[case_id]

    @property
    def weights(self) -> dict[str, Tensor]:
        """Weights of voxels by the name of their fold."""
        return {name: torch.cat([self.weight[i] for i in members]) for name, members in self._members()}

    @property
    def group(self) -> Tensor:
        """Number of the group of each voxel ``(n,)``, fold behind fold."""
        return torch.cat([self._group(members) for _, members in self._members()])

    def of(self, pooling: Pooling, features: Sequence[str] = ()) -> list[Fold]:
        """The sampled voxels of each fold, with some features of theirs."""
        return [self._fold(name, members, pooling, features) for name, members in self._members()]

    def _members(self) -> Iterator[tuple[str, list[str]]]:
        """Name and cases of each fold."""
        for number, names in enumerate(self.folds):
            yield f"fold-{number}", [case_id for case_id, group in self.group_of.items() if group in names]

    def _group(self, members: list[str]) -> Tensor:
        numbers = [torch.full_like(self.index[i], self.groups.index(self.group_of[i])) for i in members]
        return torch.cat(numbers)

    def _fold(self, name: str, members: list[str], pooling: Pooling, features: Sequence[str]) -> Fold:
        logits = [self.cases.pooled(i, pooling).flatten(1)[:, self.index[i]] for i in members]
        target = [self.cases.target(i).flatten()[self.index[i]] for i in members]
        weight = torch.cat([self.weight[i] for i in members])
        fold = Fold(name, torch.cat(logits, 1)[None], torch.cat(target)[None], weight, self._group(members))
        found = [self._features(case_id, pooling, features) for case_id in members if features]
        return replace(fold, features=torch.cat(found, 1)[None]) if found else fold

    def _features(self, case_id: str, pooling: Pooling, names: Sequence[str]) -> Tensor:
        """Features ``(F, n)`` of the sampled voxels of a case."""
        maps = self.cases.features(case_id, names, pooling)
        assert maps is not None
        return maps.flatten(1)[:, self.index[case_id]]


def draw(cases: StoredCases, case_id: str, size: int) -> tuple[Tensor, Tensor]:
    """About ``size`` voxels of a case: their flat indices, and weights that add up to 1.

    Args:
        cases: where the case is.
        case_id: its id.
        size: how many to draw; all where there are no more.
    """
    index = cases.counted(case_id)
    if len(index) <= size:
        return index, torch.full((len(index),), 1 / len(index), dtype=torch.float64)
    logits, target = cases.pooled(case_id, "p").flatten(1)[:, index], cases.target(case_id).flatten()[index]
    missed = 1 - logits.softmax(0).gather(0, target[None].long())[0].double() + FLOOR
    probability = inclusion(missed, size)
    kept = (hashed_uniform(case_id, index) < probability).nonzero().squeeze(1)
    weight = 1 / probability[kept]
    return index[kept], weight / weight.sum()


def inclusion(importance: Tensor, size: int) -> Tensor:
    """Probabilities ``min(1, tau importance)`` that add up to ``size``.

    Example:
        >>> inclusion(torch.tensor([9.0, 1.0, 1.0, 1.0]), 2)
        tensor([1.0000, 0.3333, 0.3333, 0.3333])
    """
    certain = torch.zeros_like(importance, dtype=torch.bool)
    while True:
        rest = importance[~certain]
        probability = importance * ((size - certain.sum()) / rest.sum())
        beyond = (probability > 1) & ~certain
        if not beyond.any():
            return probability.masked_fill(certain, 1.0)
        certain |= beyond
