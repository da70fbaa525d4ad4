"""Drawing of the images of `Shapes`: textured objects whose class and border are partly a matter of opinion.

Works in any number of spatial axes. Three sources of doubt are built in, none of which a network can learn
away: borders are blended in the image while the annotator's border wanders around them; an object's texture
may be mixed with that of another class; and there is noise.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.special import expit

Field = NDArray[np.float32]

CLASSES = ("background", "disc", "rod", "speck")
FREQUENCY = (0.02, 0.13, 0.19, 0.16)  # cycles a pixel of each class's texture
COLOUR = np.array([[0.42, 0.44, 0.42], [0.55, 0.45, 0.40], [0.45, 0.50, 0.55], [0.68, 0.62, 0.40]], np.float32)
CHANCE = (0.0, 0.5, 0.35, 0.15)  # of an object to be of each class
RADIUS = (0.0, 0.17, 0.20, 0.07)  # typical, as a share of the image's side
STRETCH = (1.0, 1.2, 3.0, 1.0)  # longest over shortest radius


@dataclass(frozen=True)
class Style:
    """How hard the images are.

    Attributes:
        noise: standard deviation of the noise, of a full range of 1.
        confusion: chance that an object's texture is mixed with another class's.
        disguise: chance that it wears the other's texture outright.
        wander: how far the annotator's border strays from the image's, relative to the object's radius.
        contrast: factor on the colours' distance from grey.
        objects: mean number of objects.
    """

    noise: float = 0.06
    confusion: float = 0.25
    disguise: float = 0.02
    wander: float = 0.12
    contrast: float = 1.0
    objects: float = 5.0

    def shifted(self, shift: float) -> "Style":
        """The style of the pool set: looser annotators, more disguise, a little more noise.

        A network that has learnt to trust clear textures is wrong there without noticing.
        """
        return replace(
            self,
            noise=self.noise * (1 + 0.15 * shift),
            disguise=min(self.disguise + 0.1 * shift, 1.0),
            wander=self.wander * (1 + shift),
            contrast=self.contrast * max(1 - 0.05 * shift, 0.1),
        )


def smooth_field(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Field:
    """Gaussian noise smoothed over ``scale`` pixels, brought to deviation 1."""
    field = gaussian_filter(rng.standard_normal(shape, dtype=np.float32), scale, mode="wrap")
    return np.asarray(field / max(float(field.std()), 1e-6), dtype=np.float32)


def _coordinates(shape: tuple[int, ...]) -> Field:
    """Pixel positions ``(axes, *S)``."""
    return np.stack(np.meshgrid(*(np.arange(n, dtype=np.float32) for n in shape), indexing="ij"))


def _directions(rng: np.random.Generator, axes: int) -> Field:
    """Random orthonormal directions, one a row."""
    return np.linalg.qr(rng.standard_normal((axes, axes)))[0].astype(np.float32)


def _level(rng: np.random.Generator, grid: Field, kind: int) -> Field:
    """How far inside a random object a pixel lies: 1 at its centre, 0 on its border, negative outside."""
    shape = np.array(grid.shape[1:], dtype=np.float32)
    centre = rng.uniform(0.05, 0.95, len(shape)).astype(np.float32) * shape
    radius = RADIUS[kind] * float(shape.min()) * rng.uniform(0.7, 1.3)
    radii = np.full(len(shape), radius, dtype=np.float32)
    radii[0] *= STRETCH[kind]
    radii[1:] /= np.sqrt(STRETCH[kind])
    offset = np.tensordot(_directions(rng, len(shape)), grid - centre.reshape(-1, *[1] * len(shape)), axes=1)
    distance = np.sqrt(np.sum((offset / radii.reshape(-1, *[1] * len(shape))) ** 2, axis=0))
    return np.asarray(1 - distance, dtype=np.float32)


def _texture(rng: np.random.Generator, grid: Field, kind: int) -> Field:
    """Stripes of the class's frequency in a random direction, in ``[-1, 1]``."""
    direction = _directions(rng, len(grid))[0]
    phase = rng.uniform(0, 2 * np.pi)
    frequency = FREQUENCY[kind] * rng.uniform(0.85, 1.15)
    return np.asarray(np.sin(2 * np.pi * frequency * np.tensordot(direction, grid, axes=1) + phase))


def _surface(rng: np.random.Generator, grid: Field, kind: int, style: Style) -> Field:
    """Colour of an object of a class ``(*S, 3)``, sometimes on the way to that of another."""
    other = int(rng.choice([k for k in range(1, len(CLASSES)) if k != kind]))
    chance, mix = rng.random(), float(rng.uniform(0.3, 0.7))
    mix = 1.0 if chance < style.disguise else mix if chance < style.disguise + style.confusion else 0.0
    tint = rng.normal(0, 0.04, 3).astype(np.float32)
    base = (1 - mix) * COLOUR[kind] + mix * COLOUR[other] + tint
    stripes = (1 - mix) * _texture(rng, grid, kind) + mix * _texture(rng, grid, other)
    return np.asarray(base + 0.10 * stripes[..., None], dtype=np.float32)


def draw(rng: np.random.Generator, shape: tuple[int, ...], style: Style) -> tuple[Field, NDArray[np.uint8]]:
    """One image with its target.

    Args:
        rng: random numbers of the image.
        shape: spatial size ``S``.
        style: how hard the image is.

    Returns:
        Image ``(*S, 3)`` in ``[0, 1]`` and class numbers ``(*S)``.

    Example:
        >>> image, target = draw(np.random.default_rng(0), (64, 64), Style())
        >>> image.shape, target.shape, bool(target.max() < 4)
        ((64, 64, 3), (64, 64), True)
    """
    grid = _coordinates(shape)
    backdrop = 0.03 * smooth_field(rng, shape, 6)[..., None] + 0.06 * _texture(rng, grid, 0)[..., None]
    image: Field = COLOUR[0] + backdrop
    target = np.zeros(shape, dtype=np.uint8)
    for _ in range(1 + rng.poisson(style.objects - 1)):
        kind = int(rng.choice(len(CLASSES), p=CHANCE))
        level = _level(rng, grid, kind) + 0.08 * smooth_field(rng, shape, 4)
        cover = expit(12 * level)[..., None]
        image = (1 - cover) * image + cover * _surface(rng, grid, kind, style)
        target[level + style.wander * smooth_field(rng, shape, 5) > 0] = kind
    noise = style.noise * rng.standard_normal(image.shape, dtype=np.float32)
    return np.clip(0.5 + style.contrast * (image - 0.5) + noise, 0, 1).astype(np.float32), target
