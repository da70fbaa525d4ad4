"""Shapes in three dimensions: made on the fly, so that the way of volumes can be tried without a file."""

from typing import Any

from lightning_calib.datasets.base import at_least
from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.drawing import CLASSES
from lightning_calib.datasets.shapes import Drawing, shape_splits
from lightning_calib.datasets.volume_reader import Volume, VolumeReader, z_score
from lightning_calib.datasets.volumes import ReadVolume, VolumeDataModule


class DrawVolume(Drawing):
    """Draws volumes."""

    def __call__(self, case: Case, native: bool) -> Volume:
        """One grey channel ``(1, D, H, W)`` and class numbers."""
        image, target = self.draw(case)
        return Volume(z_score(image.mean(axis=-1)[None], target >= 0), target, None, {"spacing": [1.0, 1.0, 1.0]})


class Shapes3D(VolumeDataModule):
    """The 3D variant of :class:`~lightning_calib.datasets.shapes.Shapes`: one channel, 4 classes, no file needed.

    Args:
        num_train: training volumes.
        num_val: validation volumes, as hard as the training volumes.
        num_pool: volumes of the pool set.
        size: depth, height and width.
        patch_size: size of training and validation patches.
        shift: how much harder than the training set the pool set is; 0 for equally hard.
        data_seed: seed of the volumes; the same for all members of an ensemble.
        options: those of :class:`~lightning_calib.datasets.volumes.VolumeDataModule`.

    Example:
        >>> shapes = Shapes3D(num_train=2, num_val=1, num_pool=1, size=(16, 24, 24), patch_size=(16, 16, 16))
        >>> next(iter(shapes.predict_dataloader()))["image"].shape
        torch.Size([1, 1, 16, 24, 24])
    """

    name = "shapes3d"
    in_channels = 1

    def __init__(
        self,
        num_train: int = 40,
        num_val: int = 8,
        num_pool: int = 24,
        size: tuple[int, int, int] = (32, 48, 48),
        patch_size: tuple[int, int, int] = (32, 32, 32),
        shift: float = 1.0,
        data_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(patch_size=patch_size, **options)
        at_least("size", size, 1)
        self.class_names = list(CLASSES)
        self.draw = DrawVolume(tuple(size), data_seed, shift)
        self.check = False  # nothing to find wrong with what is drawn here
        self.adopt(shape_splits(num_train, num_val, num_pool))

    def reader(self) -> ReadVolume:
        """Draws."""
        return self.draw

    def file_reader(self) -> ReadVolume:
        """Volumes of such shapes are read as any other."""
        return VolumeReader()
