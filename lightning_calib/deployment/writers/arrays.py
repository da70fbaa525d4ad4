"""Maps as one safetensors file a case, and as pictures where they are 2D."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lightning_calib.deployment.maps import Array, Maps, Precision
from lightning_calib.deployment.writers.base import MapWriter, whole
from lightning_calib.kit.files import atomic_path
from lightning_calib.kit.tensors import write_tensors

_MOST_CLASSES = 256  # of a picture


class ArrayWriter(MapWriter):
    """``<case>.safetensors``, and ``<case>_<map>.png`` of 2D maps in 8 bits."""

    name, needs = "arrays", "nothing"

    def takes(self, maps: Maps) -> bool:
        """Everything."""
        return True

    def stated_error(self, precision: Precision) -> float:
        """Of 16 bits that of float16, whose steps are 2^-11 below 1."""
        return 2.0**-12 if precision == "16bit" else super().stated_error(precision)

    def write(self, start: Path, maps: Maps, precision: Precision, probabilities: bool) -> list[Path]:
        """All maps in one file, and pictures for people."""
        arrays, labels = maps.arrays(probabilities), maps.written_labels()
        files = [_save(start.with_name(f"{start.name}.safetensors"), arrays, labels, precision)]
        if maps.mask.ndim == 2 and maps.probs.shape[0] <= _MOST_CLASSES:
            flat = {name: whole(array, 255, np.uint8) for name, array in arrays.items() if array.ndim == 2}
            inside = {name: labels[name].astype(bool) for name in maps.decided}  # 0 and 1 would both look black
            for name, array in (labels | flat | inside).items():
                files.append(_save_picture(start.with_name(f"{start.name}_{name}.png"), array))
        return files


def _save(path: Path, arrays: dict[str, Tensor], labels: dict[str, Array], precision: Precision) -> Path:
    held = {name: _encode(array, precision) for name, array in arrays.items()}
    held |= {name: torch.from_numpy(array.astype(np.int32)) for name, array in labels.items()}
    write_tensors(path, held, {"divide_by": "1" if precision != "8bit" else "255"})
    return path


def _encode(array: Tensor, precision: Precision) -> Tensor:
    if precision == "8bit":
        return torch.from_numpy(whole(array, 255, np.uint8))
    return array.to(torch.float16 if precision == "16bit" else torch.float32)


def _save_picture(path: Path, array: Array) -> Path:
    with atomic_path(path) as aside:
        Image.fromarray(array).save(aside, format="PNG")
    return path
