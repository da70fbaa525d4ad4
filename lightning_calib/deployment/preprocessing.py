"""The way from an image file to what the networks see, as it was in training, and back to the file's grid."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lightning_calib.datasets.base import SegmentationDataModule
from lightning_calib.datasets.grids import nonzero_box
from lightning_calib.datasets.images import ImageDataModule
from lightning_calib.datasets.readers import PICTURES, VOLUMES, read_image, suffix
from lightning_calib.datasets.transforms import ImageTransform, Normalization
from lightning_calib.datasets.volume_reader import VolumeReader, read_channels, z_score

IMAGES, VOLUME_FILES = (*PICTURES, ".npy"), (*VOLUMES, ".npy")


@dataclass(frozen=True)
class LoadedImage:
    """An image as the networks see it, and the way back.

    Attributes:
        image: ``(channels, *S_in)``, normalised.
        restore: brings logits ``(C, *S_in)`` to the file's grid ``(C, *S)``.
        valid: where the networks predict, bool ``(*S)``; None for everywhere.
        geometry: affine, spacing and order of axes of a volume.
    """

    image: Tensor
    restore: Callable[[Tensor], Tensor]
    valid: Tensor | None = None
    geometry: dict[str, Any] | None = None


@dataclass(frozen=True)
class Preprocessing:
    """What happens to an image file before the networks see it.

    Attributes:
        kind: ``image`` for 2D pictures and NPY, ``volume`` for NIfTI and NPY.
        in_channels: channels of an image.
        normalization: how 2D images are scaled.
        image_size: size that 2D images are resized to; logits are resized back. None keeps the file's.
        content_only: volumes are cut to the box of their nonzero voxels and normalised within those.
        spacing: voxel size that volumes are resampled to; None keeps the file's.
    """

    kind: Literal["image", "volume"]
    in_channels: int
    normalization: Normalization = "imagenet"
    image_size: tuple[int, int] | None = None
    content_only: bool = False
    spacing: tuple[float, ...] | None = None

    @classmethod
    def of(cls, data: SegmentationDataModule) -> Self:
        """What a DataModule does to the cases of its pool set."""
        if isinstance(data, ImageDataModule):
            size = None if data.image_size is None else (int(data.image_size[0]), int(data.image_size[1]))
            return cls("image", data.in_channels, normalization=data.normalization, image_size=size)
        reader = getattr(data, "volume_reader", VolumeReader())
        return cls("volume", data.in_channels, content_only=reader.content_only, spacing=reader.spacing)

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Self:
        """Read from the JSON form."""
        tuples = {key: tuple(facts[key]) if facts.get(key) else None for key in ("image_size", "spacing")}
        return cls(**{**facts, **tuples})

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of files that can be read."""
        return IMAGES if self.kind == "image" else VOLUME_FILES

    def load(self, files: Sequence[Path]) -> LoadedImage:
        """Read one case of one file, or of one file a channel."""
        loaded = self._picture(files) if self.kind == "image" else self._volume(files)
        if len(loaded.image) != self.in_channels:
            raise ValueError(
                f"{files[0]}: {len(loaded.image)} channels, the networks were trained on {self.in_channels}"
                + ("; name one file a channel <case>_0000, <case>_0001, ..." if self.kind == "volume" else "")
            )
        return loaded

    def _picture(self, files: Sequence[Path]) -> LoadedImage:
        (path,) = files
        raw = read_image(path)
        if self.normalization == "imagenet" and (raw.dtype != np.uint8 or raw.shape[2] != 3):
            raise ValueError(f"{path}: {raw.dtype} with {raw.shape[2]} channels; the networks take 8-bit RGB")
        size = raw.shape[:2]
        transform = ImageTransform(image_size=self.image_size, normalization=self.normalization)
        image, _ = transform(raw, np.zeros(size, np.uint8), np.random.default_rng(0))
        return LoadedImage(torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), _resize_to(size))

    def _volume(self, files: Sequence[Path]) -> LoadedImage:
        channels = [read_channels(path) for path in files]
        first = channels[0]
        for path, channel in zip(files, channels, strict=True):
            if channel.array.shape[1:] != first.array.shape[1:]:
                shapes = f"{channel.array.shape[1:]}, {files[0].name} {first.array.shape[1:]}"
                raise ValueError(f"{path}: the volume is {shapes}; channels of a case share one grid")
            if not np.isfinite(channel.array).all():
                raise ValueError(f"{path}: not every voxel is a finite number; repair or leave out the case")
        array = np.concatenate([channel.array for channel in channels])
        reader = VolumeReader(self.content_only, self.spacing)
        inside = reader.inside(array)
        grid = reader.grid(array.shape[1:], first.spacing, nonzero_box(inside) if self.content_only else None)
        image = torch.from_numpy(np.ascontiguousarray(grid.image(z_score(array, inside))))
        valid = torch.from_numpy(grid.valid()) if grid.cropped else None
        is_nifti = suffix(files[0]) in VOLUMES
        return LoadedImage(image, grid.restore, valid, first.geometry if is_nifti else None)


def _resize_to(size: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Bilinear resizing of ``(C, H, W)``; nothing where the size is right."""

    def restore(logits: Tensor) -> Tensor:
        if logits.shape[1:] == size:
            return logits
        return interpolate(logits[None], size=size, mode="bilinear", align_corners=False)[0]

    return restore
