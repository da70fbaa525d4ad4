"""A data set of another package: its own DataModule with its own reader."""

from dataclasses import dataclass

import numpy as np

from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.readers import read_image, read_mask


@dataclass(frozen=True)
class ReadNegative:
    """Reads pictures as negatives, dimmed; a case without a mask is a new image."""

    dim: int = 1

    def __call__(self, case):
        image = (255 - read_image(case.images[0])) // self.dim
        return image, np.zeros(image.shape[:2], np.uint8) if case.mask is None else read_mask(case.mask)


class Negatives(Folder):
    """Pictures that networks see as negatives."""

    def reader(self):
        """Reads negatives."""
        return ReadNegative(dim=2)
