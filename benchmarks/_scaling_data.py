"""The paper's data sets by their sizes, and small stores of made-up cases that look like them."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

import lightning_calib as lc
from lightning_calib.experiment.cost.workload import Extent
from lightning_calib.outputs.store import OutputStore

MEMBERS = 5


@dataclass(frozen=True)
class DataSet:
    """A data set of the paper.

    Attributes:
        name: for tables.
        classes: C.
        shape: of a case.
        parts: cases of ``cal``, ``val`` and ``test``.
        small: shape of made-up cases with the same classes, to measure on.
    """

    name: str
    classes: int
    shape: tuple[int, ...]
    parts: tuple[int, int, int]
    small: tuple[int, ...]

    @property
    def voxels(self) -> int:
        """Voxels of a case."""
        return prod(self.shape)

    @property
    def extent(self) -> Extent:
        """What the paper's experiment reads, when nothing is pooled yet."""
        cal, val, test = (float(cases * self.voxels) for cases in self.parts)
        everything = sum(self.parts) * self.voxels
        pooled: dict = {"p0": 0, "p": everything, "z": everything}
        return Extent(self.classes, self.voxels, cal, val, test, pooled, everything)

    @property
    def store_bytes(self) -> int:
        """Frozen outputs of five members in float32, with int64 targets."""
        return sum(self.parts) * self.voxels * (4 * MEMBERS * self.classes + 8)


# Table 1 of the paper; BraTS GLI 2024 comes in volumes of 182 x 218 x 182, Massachusetts Roads in tiles of 1500 x 1500.
PAPER = (
    DataSet("Massachusetts Roads", 2, (1500, 1500), (50, 24, 169), (384, 384)),
    DataSet("BraTS GLI 2024", 5, (182, 218, 182), (50, 27, 194), (48, 48, 24)),
    DataSet("Cityscapes", 20, (1024, 2048), (50, 50, 400), (112, 128)),
)


def made_up(number: int, classes: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Logits ``(M, C, *S)`` and target: smooth regions, members that err together and apart, offsets."""
    generator = torch.Generator().manual_seed(number)

    def field(coarser: int) -> Tensor:
        coarse = [max(2, size // coarser) for size in shape]
        noise = torch.randn(1, classes, *coarse, generator=generator)
        return torch.nn.functional.interpolate(noise, size=shape, mode="bilinear" if len(shape) == 2 else "trilinear")

    prior = torch.linspace(1.5, -2.0, classes).view(1, classes, *(1 for _ in shape))
    truth = 2.0 * field(16) + 1.2 * field(4) + prior
    members = torch.cat([truth + 0.9 * field(8) + 0.5 * field(2) for _ in range(MEMBERS)])
    offsets = 0.7 * torch.randn(MEMBERS, 1, *shape, generator=generator)  # what softmax does not see
    return 2.2 * members + offsets, truth.argmax(1)[0]


def made_up_store(folder: Path, cases: int, classes: int, shape: tuple[int, ...]) -> OutputStore:
    """A store of made-up cases."""
    made = {f"case-{number:03d}": made_up(number, classes, shape) for number in range(cases)}
    logits, target = ({name: pair[i] for name, pair in made.items()} for i in (0, 1))
    return lc.from_arrays(folder / "outputs", logits, target, dataset=folder.name)
