"""What an image's labels say of its voxels: computed once for all pipelines that are judged by them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lightning_calib.functional.boundary import Banded
from lightning_calib.functional.flips import classes_of
from lightning_calib.functional.smoothed import smoothed_mass
from lightning_calib.functional.voxels import Chunk, chunks, count_labels, only, places


@dataclass(frozen=True)
class Judged:
    """A chunk of voxels and what their predictions are judged by.

    Attributes:
        chunk: the voxels.
        before: int64 classes of the reference ``(n,)``, where there is one.
        banded: bands of distance, where distances are known.
    """

    chunk: Chunk
    before: Tensor | None
    banded: Banded | None


class Truth:
    """An image's labels and what goes with them.

    Args:
        labels: ``(N,)``.
        keep: bool ``(N,)`` of the voxels that count, or None for all.
        shape: of the image ``S``.
        num_classes: ``C``.
        place: what to call the image in an error.
        reference: what flips are counted against: scores ``(C, N)`` or classes ``(N,)``.
        distance: distances to the boundary ``(N,)``.
        edges: of the distance bands.
        sigma: width of the Gaussian of the smoothed gaps, 0 for none.
    """

    def __init__(
        self,
        labels: Tensor,
        keep: Tensor | None,
        shape: torch.Size,
        num_classes: int,
        place: str,
        reference: Tensor | None = None,
        distance: Tensor | None = None,
        edges: tuple[float, ...] = (),
        sigma: float = 0.0,
    ) -> None:
        self.labels, self.keep, self.shape, self.place = labels, keep, shape, place
        self.reference, self.distance, self.edges, self.sigma = reference, distance, edges, sigma
        self.parts = list(chunks(num_classes, len(labels), labels.device))
        self.counts = count_labels(labels, keep, self.parts, num_classes, place)
        if distance is not None:
            _check_distance(distance, keep)

    @cached_property
    def mass(self) -> Tensor:
        """What smoothed gaps are divided by ``(*S)``."""
        counted = torch.ones_like(self.labels, dtype=torch.bool) if self.keep is None else self.keep
        return smoothed_mass(counted.view(self.shape), self.sigma)

    def __iter__(self) -> Iterator[Judged]:
        """The chunks in order."""
        for part, count in zip(self.parts, self.counts, strict=True):
            chunk = Chunk.of(self.labels[part], part, places(self.keep, part, count))
            before = banded = None
            if self.reference is not None:
                before = only(classes_of(self.reference, part), chunk.keep).to(chunk.target.device)
            if self.distance is not None:
                banded = Banded.of(only(self.distance[part], chunk.keep).to(chunk.target.device), self.edges)
            yield Judged(chunk, before, banded)


def _check_distance(distance: Tensor, keep: Tensor | None) -> None:
    fine = distance >= 0
    if not bool((fine if keep is None else fine | ~keep).all()):
        raise ValueError("distances must be 0 or more; compute them with boundary_distance(target)")
