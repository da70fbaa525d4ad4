"""Resizing, cropping, augmentation and normalisation of 2D images."""

import random
from dataclasses import dataclass
from typing import Any, Literal

import albumentations as A
import cv2
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Augmentation = Literal["none", "light", "strong"]
Normalization = Literal["imagenet", "image"]

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def normalize(image: Array, how: Normalization) -> Array:
    """Bring an image to the range that networks expect.

    Args:
        image: ``(H, W, channels)``.
        how: ``"imagenet"``: 8-bit RGB by ImageNet's mean and deviation, for pretrained encoders; ``"image"``:
            each channel to mean 0 and deviation 1 over the image, for any range and number of channels.

    Returns:
        float32 ``(H, W, channels)``.

    Example:
        >>> normalize(np.full((2, 2, 3), 255, np.uint8), "imagenet")[0, 0].astype(float).round(2).tolist()
        [2.25, 2.43, 2.64]
    """
    pixels = image.astype(np.float32)
    if how == "imagenet":
        return np.asarray((pixels / 255 - IMAGENET_MEAN) / IMAGENET_STD)
    mean, std = pixels.mean(axis=(0, 1)), pixels.std(axis=(0, 1))
    return np.asarray((pixels - mean) / np.maximum(std, 1e-6))


def _orientation(any_orientation: bool, cropped: bool) -> list[A.BasicTransform]:
    if not any_orientation:
        return [A.HorizontalFlip(p=0.5)]
    # A quarter turn would change the shape of a whole image, and with it that of a batch.
    return [A.D4(p=1)] if cropped else [A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5)]


def _geometry(augmentation: Augmentation, any_orientation: bool, cropped: bool) -> list[A.BasicTransform]:
    if augmentation == "none":
        return []
    turn = _orientation(any_orientation, cropped)
    if augmentation == "light":
        return turn
    if cropped:
        return [A.RandomScale(scale_limit=(-0.5, 1.0), interpolation=cv2.INTER_LINEAR, p=0.8), *turn]
    return [A.Affine(scale=(0.5, 2.0), border_mode=cv2.BORDER_REFLECT_101, p=0.8), *turn]


def _colour(augmentation: Augmentation) -> list[A.BasicTransform]:
    if augmentation == "none":
        return []
    if augmentation == "light":
        return [A.RandomBrightnessContrast(brightness_limit=0.2, contrast_limit=0.2, p=0.5)]
    return [
        A.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.05, p=0.8),
        A.GaussianBlur(blur_limit=(3, 5), p=0.15),
        A.GaussNoise(std_range=(0.01, 0.05), p=0.15),
    ]


def _crop(size: tuple[int, int] | None) -> list[A.BasicTransform]:
    """A random crop; smaller images are mirrored out, target included, so that every pixel has a label."""
    if size is None:
        return []
    pad = A.PadIfNeeded(*size, border_mode=cv2.BORDER_REFLECT_101)
    return [pad, A.RandomCrop(*size)]


@dataclass
class ImageTransform:
    """What happens to a raw image and its target on the way to the network.

    Args:
        image_size: height and width that images and targets are resized to; None keeps them.
        crop_size: height and width of a random crop; None takes whole images.
        augmentation: none; light (mirroring, brightness); strong (also scale .5 to 2, colour, blur, noise).
        normalization: how intensities are scaled, see :func:`normalize`.
        any_orientation: the image has no up or down (aerial, microscopy): crops are turned to all eight
            orientations, whole images mirrored both ways.
    """

    image_size: tuple[int, int] | None = None
    crop_size: tuple[int, int] | None = None
    augmentation: Augmentation = "none"
    normalization: Normalization = "imagenet"
    any_orientation: bool = False

    def __post_init__(self) -> None:
        """Compose the steps once."""
        resize = [] if self.image_size is None else [A.Resize(*self.image_size, interpolation=cv2.INTER_AREA)]
        colour = _colour(self.augmentation) if self.normalization == "imagenet" else []
        geometry = _geometry(self.augmentation, self.any_orientation, self.crop_size is not None)
        self._steps = A.Compose([*resize, *geometry, *_crop(self.crop_size), *colour])

    def __call__(self, image: Array, target: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Transform one image.

        Args:
            image: ``(H, W, channels)``.
            target: ``(H, W)`` integer.
            rng: the sample's own random numbers.

        Returns:
            float32 image ``(H', W', channels)`` and target ``(H', W')``.
        """
        seed = int(rng.integers(2**32))
        # One stream for all steps: with set_random_seed every step would get the same first number, and
        # steps that should be independent would be applied together.
        self._steps.set_random_state(np.random.default_rng(seed), random.Random(seed))
        done = self._steps(image=image, mask=target)
        return normalize(done["image"], self.normalization), done["mask"]
