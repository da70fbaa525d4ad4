"""Regions: what the channels of sigmoid networks stand for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lightning_calib.functional.regions import supersets

OUTSIDE = "outside"  # name of the first class of a view


@dataclass(frozen=True)
class Region:
    """What one channel of a sigmoid network stands for.

    Args:
        name: name of the region.
        labels: labels of the target that make it.
    """

    name: str
    labels: tuple[int, ...]

    @classmethod
    def all_of(cls, labels: Mapping[str, Sequence[int]]) -> tuple[Self, ...]:
        """Regions in the order of the channels, from their labels by name."""
        return tuple(cls(name, tuple(int(label) for label in held)) for name, held in labels.items())

    @property
    def slug(self) -> str:
        """The name as part of a path.

        Example:
            >>> Region("Whole Tumor", (1, 2)).slug
            'whole_tumor'
        """
        return re.sub(r"[^\w.-]+", "_", self.name.strip().lower()).lstrip(".") or "region"

    def target(self, labels: Tensor, ignore_index: int | None) -> Tensor:
        """Class 1 within the region, 0 outside; what is ignored stays so."""
        inside = torch.zeros_like(labels, dtype=torch.bool)
        for label in self.labels:
            inside |= labels == label
        classes = inside.long()
        return classes if ignore_index is None else classes.where(labels != ignore_index, ignore_index)


def problems(regions: Sequence[Region], num_labels: int) -> str:
    """What is wrong with the regions of a store; empty where nothing is."""
    slugs = [region.slug for region in regions]
    if len(set(slugs)) < len(slugs):
        return f"regions {', '.join(region.name for region in regions)}: give each a name of its own"
    for region in regions:
        wrong = [label for label in region.labels if not 0 <= label < num_labels]
        if wrong or not region.labels:
            return f"region {region.name} has the labels {list(region.labels)}; the data set has 0 to {num_labels - 1}"
    return ""


def within(regions: Sequence[Region]) -> dict[str, list[str]]:
    """For each region the names of those that it lies within, by their labels."""
    larger = supersets([region.labels for region in regions])
    return {
        region.name: [regions[number].name for number in numbers]
        for region, numbers in zip(regions, larger, strict=True)
    }


def painted(regions: Sequence[Region]) -> dict[str, int]:
    """The label that each region paints in a label map, in the order of painting: smaller ones over larger ones.

    It is the first label that no smaller region within has.

    Example:
        >>> painted(Region.all_of({"core": [2, 3], "whole": [1, 2, 3], "enhancing": [3]}))
        {'whole': 1, 'core': 2, 'enhancing': 3}
    """
    ordered = sorted(regions, key=lambda region: -len(set(region.labels)))
    own = {
        region.name: set(region.labels).difference(*(r.labels for r in regions if set(r.labels) < set(region.labels)))
        for region in ordered
    }
    return {region.name: min(own[region.name] or region.labels) for region in ordered}
