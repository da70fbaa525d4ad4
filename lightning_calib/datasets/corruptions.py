"""Photometric corruptions of 8-bit images, for covariate shift whose labels stay right.

The bank and its parameters are those of the paper (Appendix H), after the common corruptions of ImageNet-C
(Hendrycks & Dietterich 2019) and their use on street scenes (Kamann & Rother 2020). Every image is changed exactly
once. Its kind and its noise follow from a hash of its name and a seed: nothing depends on order, processes or the
machine. Only JPEG is computed elsewhere (libjpeg, through pillow), whose versions may differ by single grey levels.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.special import ndtri

Severity = Literal["mild", "strong"]
Kind = Literal["noise", "blur", "brightness", "jpeg", "fog"]
Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
KINDS: tuple[Kind, ...] = get_args(Kind)

PARAMETERS: dict[Kind, dict[Severity, dict[str, float]]] = {
    "noise": {"mild": {"sigma": 0.03}, "strong": {"sigma": 0.10}},
    "blur": {"mild": {"size": 5, "sigma": 1.0}, "strong": {"size": 13, "sigma": 3.0}},
    "brightness": {"mild": {"factor": 1.2}, "strong": {"factor": 1.8}},
    "jpeg": {"mild": {"quality": 60}, "strong": {"quality": 10}},
    "fog": {"mild": {"alpha": 0.1}, "strong": {"alpha": 0.5}},
}

CORRUPTION, EXAMPLE = "corruption.json", "example.png"  # what a corrupted store holds beside its manifest

_LEVELS = 2**16  # of the table of normal quantiles


def gaussian_noise(image: Pixels, sigma: float, key: int = 0) -> Pixels:
    """Add independent normal noise to every channel of every pixel.

    Args:
        image: 8-bit ``(H, W, 3)``.
        sigma: standard deviation on the scale ``[0, 1]``.
        key: the noise is a function of this number alone.

    Example:
        >>> grey = np.full((64, 64, 3), 128, dtype=np.uint8)
        >>> round(float((gaussian_noise(grey, 0.1) / 255.0).std()), 2)
        0.1
    """
    return _to_pixels(image + 255 * sigma * _normal(key, image.shape))


def gaussian_blur(image: Pixels, size: float, sigma: float) -> Pixels:
    r"""Convolve both axes with a normal kernel; edges are mirrored, the outermost pixel not repeated.

    .. math:: w_i \propto e^{-i^2 / (2 \sigma^2)}, \qquad |i| \le (k - 1) / 2

    Args:
        image: 8-bit ``(H, W, 3)``.
        size: odd width ``k`` of the kernel.
        sigma: its standard deviation in pixels.
    """
    radius = int(size) // 2
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    blurred = image.astype(np.float64)
    for axis in (0, 1):
        widths = [(radius, radius) if n == axis else (0, 0) for n in range(image.ndim)]
        padded, length = np.pad(blurred, widths, mode="reflect"), image.shape[axis]
        parts = (w * np.take(padded, range(i, i + length), axis=axis) for i, w in enumerate(weights))
        blurred = np.asarray(sum(parts), dtype=np.float64)
    return _to_pixels(blurred)


def brightness(image: Pixels, factor: float) -> Pixels:
    """Multiply every value; what exceeds white is white.

    Example:
        >>> brightness(np.array([[[10, 100, 200]]], dtype=np.uint8), 1.8).tolist()
        [[[18, 180, 255]]]
    """
    return _to_pixels(factor * image.astype(np.float64))


def jpeg(image: Pixels, quality: float) -> Pixels:
    """Compress as JPEG of a quality (1 to 95) and read it again; colours at half resolution, as is usual."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=int(quality))
    with Image.open(file) as compressed:
        return np.array(compressed.convert("RGB"))


def fog(image: Pixels, alpha: float) -> Pixels:
    r"""Blend with white: :math:`(1 - \alpha) I + \alpha \cdot 255`.

    Example:
        >>> fog(np.array([[[0, 100, 255]]], dtype=np.uint8), 0.5).tolist()
        [[[128, 178, 255]]]
    """
    return _to_pixels((1 - alpha) * image.astype(np.float64) + alpha * 255)


_FUNCTIONS: dict[Kind, Callable[..., Pixels]] = {
    "noise": gaussian_noise,
    "blur": gaussian_blur,
    "brightness": brightness,
    "jpeg": jpeg,
    "fog": fog,
}


def corrupt(image: Pixels, kind: Kind, severity: Severity, key: int = 0) -> Pixels:
    """One corruption at the paper's parameters.

    Args:
        image: 8-bit RGB ``(H, W, 3)``.
        kind: which corruption.
        severity: ``mild`` or ``strong``.
        key: what the noise follows from; the other kinds have nothing random.

    Returns:
        A new image of the same shape and type.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"corruptions change 8-bit RGB images (H, W, 3), got {image.dtype} of the shape {image.shape}; "
            "they do not apply to volumes or other modalities"
        )
    extra = {"key": key} if kind == "noise" else {}
    return _FUNCTIONS[kind](image, **PARAMETERS[kind][severity], **extra)


@dataclass(frozen=True)
class Corruption:
    """The corruption of a whole data set: a ``raw_transform`` of the image DataModules.

    An image gets the same kind at both severities.

    Args:
        severity: ``mild`` or ``strong``.
        seed: seed of kinds and noise.

    Example:
        >>> image = np.zeros((4, 4, 3), dtype=np.uint8)
        >>> mild, strong = Corruption("mild"), Corruption("strong")
        >>> mild.kind("frankfurt_000000") == strong.kind("frankfurt_000000")
        True
        >>> strong(image, "frankfurt_000000").shape
        (4, 4, 3)
    """

    severity: Severity
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no severity."""
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity {self.severity!r}; choose one of {', '.join(SEVERITIES)}")

    def __call__(self, image: Pixels, case_id: str) -> Pixels:
        """The corrupted image of a case."""
        return corrupt(image, self.kind(case_id), self.severity, _hash(f"{self.seed}:{case_id}:noise"))

    def kind(self, case_id: str) -> Kind:
        """Which corruption a case gets."""
        return KINDS[_hash(f"{self.seed}:{case_id}") % len(KINDS)]

    def describe(self, case_ids: Sequence[str]) -> dict[str, Any]:
        """Everything there is to know about the corruption of some cases, as JSON can hold it."""
        parameters = {kind: PARAMETERS[kind][self.severity] for kind in KINDS}
        kinds = {case_id: self.kind(case_id) for case_id in case_ids}
        return {"severity": self.severity, "seed": self.seed, "parameters": parameters, "kinds": kinds}


def psnr(clean: Pixels, corrupted: Pixels) -> float:
    r"""Peak signal-to-noise ratio in decibels, :math:`10 \log_{10} (255^2 / \mathrm{MSE})`; infinite if equal.

    Example:
        >>> black = np.zeros((2, 2, 3), dtype=np.uint8)
        >>> psnr(black, black + np.uint8(255)), psnr(black, black)
        (0.0, inf)
    """
    error = float(np.mean((clean.astype(np.float64) - corrupted) ** 2))
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def _to_pixels(values: Floats) -> Pixels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _hash(text: str) -> int:
    """A number of 128 bits that is the same on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


@cache
def _quantiles() -> Floats:
    """Normal quantiles at the midpoints of equal slices of probability."""
    return np.asarray(ndtri((np.arange(_LEVELS) + 0.5) / _LEVELS), dtype=np.float64)


def _normal(key: int, shape: tuple[int, ...]) -> Floats:
    """Standard normal numbers from the raw bits of a counter-based generator.

    numpy promises the bits of its generators for ever, but not what it makes of them: quantiles are looked up here.
    """
    size = int(np.prod(shape))
    words = np.random.Philox(key=key).random_raw(-(-size // 4))
    levels = np.asarray(words, dtype="<u8").view("<u2")[:size]
    return np.asarray(_quantiles()[levels].reshape(shape))
