"""Shapes: made on the fly, so that everything can be tried without a file."""

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lightning_calib.datasets.base import at_least
from lightning_calib.datasets.cases import Case, Splits
from lightning_calib.datasets.drawing import CLASSES, Style, draw
from lightning_calib.datasets.images import Array, ImageDataModule, ReadImage


@lru_cache(maxsize=1024)
def drawn(case_id: str, size: tuple[int, ...], data_seed: int, shift: float) -> tuple[Array, Array]:
    """Image in ``[0, 1]`` and target of a case; kept, since every epoch asks for it again."""
    rng = np.random.default_rng([data_seed, zlib.crc32(case_id.encode())])
    style = Style().shifted(shift) if case_id.startswith("pool") else Style()
    return draw(rng, size, style)


@dataclass(frozen=True)
class Drawing:
    """How cases are drawn from their names.

    Attributes:
        size: spatial size.
        data_seed: seed of all images.
        shift: how much harder the pool set is.
    """

    size: tuple[int, ...]
    data_seed: int
    shift: float

    def draw(self, case: Case) -> tuple[Array, Array]:
        """Image ``(*S, 3)`` in ``[0, 1]`` and class numbers ``(*S)``; the same at every call."""
        image, target = drawn(case.case_id, self.size, self.data_seed, self.shift)
        return image, target.copy()


class DrawImage(Drawing):
    """Draws images."""

    def __call__(self, case: Case) -> tuple[Array, Array]:
        """8-bit image ``(H, W, 3)`` and class numbers ``(H, W)``."""
        image, target = self.draw(case)
        return np.rint(255 * image).astype(np.uint8), target


def shape_splits(num_train: int, num_val: int, num_pool: int) -> Splits:
    """Cases ``train_0000``, ``train_0001``, ..., ``val_0000``, ..., ``pool_0000``, ..."""
    counts = {"train": num_train, "val": num_val, "pool": num_pool}
    for part, count in counts.items():
        at_least(f"num_{part}", count, 1)
    train, val, pool = ([Case(f"{part}_{n:04d}") for n in range(count)] for part, count in counts.items())
    return Splits(train, val, pool)


class Shapes(ImageDataModule):
    """Textured discs, rods and specks on a restless background: 4 classes, 2D, no file needed.

    Borders are blended in the image and wander in the target, some objects look like another class, specks
    are rare, and the pool set is harder than the training set: networks end up overconfident, and ensemble
    members disagree.

    Args:
        num_train: training images.
        num_val: validation images, as hard as the training images.
        num_pool: images of the pool set.
        size: height and width.
        shift: how much harder than the training set the pool set is; 0 for equally hard.
        data_seed: seed of the images; the same for all members of an ensemble.
        options: those of :class:`~lightning_calib.datasets.images.ImageDataModule`.

    Example:
        >>> shapes = Shapes(num_train=6, num_val=2, num_pool=3, size=(32, 48))
        >>> shapes.num_classes, shapes.pool_ids
        (4, ['pool_0000', 'pool_0001', 'pool_0002'])
        >>> next(iter(shapes.predict_dataloader()))["image"].shape
        torch.Size([1, 3, 32, 48])
    """

    name = "shapes"
    background = 0
    any_orientation = True

    def __init__(
        self,
        num_train: int = 160,
        num_val: int = 32,
        num_pool: int = 96,
        size: tuple[int, int] = (64, 64),
        shift: float = 1.0,
        data_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        at_least("size", size, 1)
        self.class_names = list(CLASSES)
        self.draw = DrawImage(tuple(size), data_seed, shift)
        self.check = False  # nothing to find wrong with what is drawn here
        self.adopt(shape_splits(num_train, num_val, num_pool))

    def reader(self) -> ReadImage:
        """Draws."""
        return self.draw

    def file_reader(self) -> ReadImage:
        """Pictures of such shapes are read as any other."""
        return super().reader()
