"""Files of raw images, for the readers of the training: those in memory are written for them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.deployment.folder import DeploymentError

RawImage = str | Path | Sequence[Path] | Image.Image | NDArray[Any]


@contextmanager
def image_files(image: RawImage, facts: Preprocessing) -> Iterator[list[Path]]:
    """The files of a raw image, for the reader that read those of the training; one in memory is written for it.

    Args:
        image: see :meth:`~lightning_calib.deployment.ensemble.CalibratedEnsemble.predict`.
        facts: what the networks were trained on.
    """
    if isinstance(image, str | Path):
        yield [Path(image)]
    elif isinstance(image, Image.Image | np.ndarray):
        with TemporaryDirectory(prefix="lightning_calib-") as folder:
            path = Path(folder) / "image"
            try:
                yield [
                    _save_picture(path, image) if isinstance(image, Image.Image) else _save_array(path, image, facts)
                ]
            except ValueError as problem:
                raise DeploymentError(str(problem).replace(f"{path}.", "the image, as .")) from problem
    elif isinstance(image, Sequence):
        yield [Path(file) for file in image]
    else:
        told = "; a tensor of the networks' own input goes to `predict_input`" if isinstance(image, Tensor) else ""
        raise DeploymentError(f"a raw image is a file, a PIL image or a NumPy array, got {type(image).__name__}{told}")


def _save_picture(path: Path, image: Image.Image) -> Path:
    image.save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def _save_array(path: Path, array: NDArray[Any], facts: Preprocessing) -> Path:
    """An array as a file: a picture where a picture can hold it."""
    if facts.kind == "image":
        channels = {facts.in_channels, 1, 4} if array.dtype == np.uint8 else {facts.in_channels}
        if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in channels):
            raise ValueError(
                f"an image is an array (H, W) or (H, W, {facts.in_channels} channels), one at a time and channels "
                f"last, got the shape {array.shape}"
            )
        if array.dtype == np.uint8 and facts.in_channels in (1, 3):
            return _save_picture(path, Image.fromarray(array.squeeze(2) if array.shape[2:] == (1,) else array))
    elif array.ndim not in (3, 4):
        raise ValueError(f"a volume is an array (D, H, W) or (channels, D, H, W), got the shape {array.shape}")
    np.save(path.with_suffix(".npy"), array)
    return path.with_suffix(".npy")
