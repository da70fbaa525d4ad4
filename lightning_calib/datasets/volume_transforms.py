"""Patches and augmentation of volumes."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Augmentation = Literal["none", "light", "strong"]


def pad_to(image: Array, target: Array, size: tuple[int, ...]) -> tuple[Array, Array]:
    """Mirror a volume out to at least ``size``, target included, so that every voxel has a label.

    Args:
        image: ``(channels, D, H, W)``.
        target: ``(D, H, W)``.
        size: least size along ``D, H, W``.
    """
    lacks = [max(want - have, 0) for want, have in zip(size, target.shape, strict=True)]
    if not any(lacks):
        return image, target
    widths = [(lack // 2, lack - lack // 2) for lack in lacks]
    return np.pad(image, [(0, 0), *widths], mode="symmetric"), np.pad(target, widths, mode="symmetric")


def patch_start(
    target: Array,
    size: tuple[int, ...],
    foreground: float,
    background: int,
    ignore_index: int | None,
    rng: np.random.Generator,
) -> tuple[int, ...]:
    """Corner of a random patch.

    With probability ``foreground`` the patch is centred on a voxel of a class other than the background,
    the class drawn first (all classes present are equally likely), then one of its voxels; otherwise all
    patches are equally likely. nnU-Net (Isensee et al., Nature Methods 2021) forces a third of each batch.

    Args:
        target: ``(D, H, W)``, at least as large as the patch.
        size: size of the patch.
        foreground: probability of a patch centred on foreground.
        background: class that does not count as foreground.
        ignore_index: label that does not either.
        rng: random numbers.

    Returns:
        First voxel of the patch along each axis.
    """
    room = [have - want for have, want in zip(target.shape, size, strict=True)]
    if rng.random() < foreground:
        classes = [c for c in np.unique(target).tolist() if c not in (background, ignore_index)]
        if classes:
            voxels = np.flatnonzero(target == rng.choice(classes))
            centre = np.unravel_index(int(rng.choice(voxels)), target.shape)
            corner = [int(c) - want // 2 for c, want in zip(centre, size, strict=True)]
            return tuple(min(max(c, 0), most) for c, most in zip(corner, room, strict=True))
    return tuple(int(rng.integers(most + 1)) for most in room)


class VolumeAugment:
    """Random changes to a patch, by MONAI.

    Args:
        augmentation: none; light (mirroring, intensity); strong (also rotation, scale, noise, blur, gamma).
    """

    def __init__(self, augmentation: Augmentation) -> None:
        self.augmentation = augmentation
        self.steps = None if augmentation == "none" else _steps(augmentation)

    def __call__(self, image: Array, target: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Augment ``image (channels, D, H, W)`` and ``target (D, H, W)`` alike."""
        if self.steps is None:
            return image, target
        self.steps.set_random_state(seed=int(rng.integers(2**32)))
        done = self.steps({"image": image, "target": target[None]})
        return np.asarray(done["image"], dtype=np.float32), np.asarray(done["target"][0], dtype=np.int64)


def _steps(augmentation: Augmentation) -> Any:  # noqa: ANN401  (MONAI has no types)
    from monai import transforms as m  # of the extra `volumes`; takes seconds to import

    both, image = ["image", "target"], ["image"]
    mirror = [m.RandFlipd(both, prob=0.5, spatial_axis=axis) for axis in range(3)]
    light = [m.RandScaleIntensityd(image, factors=0.2, prob=0.5), m.RandShiftIntensityd(image, offsets=0.1, prob=0.5)]
    if augmentation == "light":
        return m.Compose([*mirror, *light])
    turn = m.RandAffined(
        both,
        prob=0.3,
        rotate_range=(0.5, 0.5, 0.5),
        scale_range=(0.2, 0.2, 0.2),
        mode=("bilinear", "nearest"),
        padding_mode="reflection",
    )
    harsh = [
        m.RandGaussianNoised(image, prob=0.15, std=0.1),
        m.RandGaussianSmoothd(image, (0.5, 1.0), (0.5, 1.0), (0.5, 1.0), prob=0.2),
        m.RandAdjustContrastd(image, prob=0.3, gamma=(0.7, 1.5)),
    ]
    return m.Compose([turn, *mirror, *harsh, *light])
