"""What all 2D DataModules share: the way from an image file to a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from lightning_calib.datasets.base import SegmentationDataModule, Stage, at_least
from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.checks import CaseFacts, class_numbers, label_facts
from lightning_calib.datasets.georeference import georeference
from lightning_calib.datasets.preprocessing import LATER, Preprocessing, record
from lightning_calib.datasets.readers import Alpha, read_image, read_labels, read_shades
from lightning_calib.datasets.sampling import SampleKey, generator
from lightning_calib.datasets.transforms import Augmentation, ImageTransform, Normalization

Array = NDArray[Any]
ReadImage = Callable[[Case], tuple[Array, Array]]
RawTransform = Callable[[Array, str], Array]


@dataclass(frozen=True)
class ReadPicture:
    """Reads a picture or NPY file with its mask.

    Attributes:
        mask_values: what the mask files hold for class 0, 1, ...; None if the class numbers themselves.
        ignore_index: value that is kept as it is.
        alpha: what becomes of transparency (see :func:`~lightning_calib.datasets.readers.read_image`).
        channels_first: NPY images are ``(channels, H, W)``.
        mask_threshold: masks are shades of grey: what is above it is class 1, the rest class 0, whatever
            ``mask_values`` says of masks that are written.
    """

    mask_values: tuple[int, ...] | None = None
    ignore_index: int | None = None
    alpha: Alpha | None = field(default=None, metadata=LATER)
    channels_first: bool = field(default=False, metadata=LATER)
    mask_threshold: float | None = field(default=None, metadata=LATER)

    def __call__(self, case: Case) -> tuple[Array, Array]:
        """Raw image ``(H, W, channels)`` and class numbers ``(H, W)``."""
        image = read_image(case.images[0], self.alpha, self.channels_first)
        if case.mask is not None and self.mask_threshold is not None:
            return image, (read_shades(case.mask) > self.mask_threshold).astype(np.uint8)
        mask = read_labels(case, image.shape[:2])
        return image, mask if case.mask is None else class_numbers(mask, self.mask_values, self.ignore_index)


class ImageDataset(Dataset[dict[str, Any]]):
    """Images and targets of some cases, transformed.

    Args:
        cases: the cases, in order.
        read: gives the raw image ``(H, W, channels)`` and the target ``(H, W)`` of a case.
        transform: what happens to both.
        seed: seed of crops and augmentation.
        raw_transform: applied to the raw 8-bit image and its case id before anything else (corruptions).
        whole: images are not cropped, so that their place on Earth is that of the file.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        read: ReadImage,
        transform: ImageTransform,
        seed: int = 0,
        raw_transform: RawTransform | None = None,
        whole: bool = False,
    ) -> None:
        self.cases, self.read, self.transform = list(cases), read, transform
        self.seed, self.raw_transform, self.whole = seed, raw_transform, whole

    def __len__(self) -> int:
        """Number of cases."""
        return len(self.cases)

    def __getitem__(self, key: SampleKey | int) -> dict[str, Any]:
        """Sample of a key: ``image (channels, H, W)`` float32, ``target (H, W)`` int64, ``case_id``."""
        key = SampleKey.of(key)
        case = self.cases[key.position]
        image, target = self.read(case)
        if self.raw_transform is not None:
            image = self.raw_transform(image, case.case_id)
        image, target = self.transform(image, target, generator(self.seed, key, case.case_id))
        sample = {
            "image": torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))),
            "target": torch.from_numpy(target.astype(np.int64)),
            "case_id": case.case_id,
        }
        if geometry := self._geometry(case, target.shape):
            sample["geometry"] = geometry
        return sample

    def _geometry(self, case: Case, shape: Sequence[int]) -> dict[str, Any]:
        """Where the pixels are: the window of a tile, and the place of a GeoTIFF image on Earth."""
        found: dict[str, Any] = {}
        if case.window is not None:
            found = {"tile": "/".join(case.groups), "window": list(case.window)}
        if self.whole and case.images:
            found |= georeference(case.images[0], shape, case.window) or {}
        return found


class ImageDataModule(SegmentationDataModule):
    """Base of the 2D DataModules: raw images go through one transform.

    Args:
        image_size: height and width that images and targets are resized to; None keeps the files' own.
        crop_size: height and width of training and validation crops; None takes whole images. Validation
            crops are the same every epoch. The pool set always comes in whole images.
        augmentation: none; light (mirroring, brightness); strong (also scale .5 to 2, colour, blur, noise).
        raw_transform: applied to the raw 8-bit image and its case id before anything else, in every part.
        options: those of :class:`~lightning_calib.datasets.base.SegmentationDataModule`.
    """

    any_orientation = False
    normalization: Normalization = "imagenet"

    def __init__(
        self,
        image_size: tuple[int, int] | None = None,
        crop_size: tuple[int, int] | None = None,
        augmentation: Augmentation = "light",
        raw_transform: RawTransform | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        at_least("image_size", image_size, 1)
        at_least("crop_size", crop_size, 1)
        self.image_size, self.crop_size, self.augmentation = image_size, crop_size, augmentation
        self.raw_transform = raw_transform

    def reader(self) -> ReadImage:
        """What reads a case: raw image ``(H, W, channels)`` and target ``(H, W)``; pictures as they are by default."""
        return ReadPicture()

    @property
    def preprocessing(self) -> Preprocessing:
        """What happens to a new image."""
        return Preprocessing(
            kind="image",
            in_channels=self.in_channels,
            reader=record(self.file_reader()),
            normalization=self.normalization,
            image_size=None if self.image_size is None else (self.image_size[0], self.image_size[1]),
            raw_transform=None if self.raw_transform is None else record(self.raw_transform),
        )

    def transform(self, stage: Stage) -> ImageTransform:
        """What happens to images in a stage."""
        return ImageTransform(
            image_size=self.image_size,
            crop_size=None if stage == "predict" else self.crop_size,
            augmentation=self.augmentation if stage == "train" else "none",
            normalization=self.normalization,
            any_orientation=self.any_orientation,
        )

    def dataset(self, cases: Sequence[Case], stage: Stage) -> ImageDataset:
        """Samples of some cases as a stage needs them."""
        seed = self.sample_seed if stage == "train" else 0
        return ImageDataset(
            cases, self.reader(), self.transform(stage), seed, self.raw_transform, whole=stage == "predict"
        )

    def inspect(self, case: Case) -> CaseFacts:
        """Facts on one case, see :meth:`describe`."""
        return self.describe(case, *self.reader()(case))

    def summary(self) -> str:
        """Also how many of the images are grey, where some are not."""
        kinds = [facts["grey"] for facts in self.facts.values() if "grey" in facts]
        grey, colour = sum(kinds), len(kinds) - sum(kinds)
        told = f"\n  {grey} grey and {colour} colour images: grey ones have three equal channels"
        return super().summary() + (told if grey and colour else "")

    def recipe(self) -> str:
        """Also depends on what is looked at; earlier versions cut off bits and bands."""
        return super().recipe() + " pictures 2"

    def describe(self, case: Case, image: Array, target: Array) -> CaseFacts:
        """Size and class counts; raises if image and mask differ in size or a label is out of range."""
        if image.shape[:2] != target.shape:
            first = "; set channels_first: true" if image.shape[1:] == target.shape else ""
            raise ValueError(f"the image is {image.shape[:2]}, the mask {target.shape}; both must be the same{first}")
        if image.shape[2] != self.in_channels:
            raise ValueError(f"the image has {image.shape[2]} channels, the others {self.in_channels}")
        grey = image.shape[2] == 3 and bool((image[..., :1] == image).all())
        return {"shape": list(target.shape), "grey": grey, **label_facts(target, self.num_classes, self.ignore_index)}
