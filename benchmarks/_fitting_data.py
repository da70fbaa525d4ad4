"""Voxels to fit: of a made-up network (confusions, overconfidence, a shift at every voxel), or of stored outputs."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_calib.outputs.stored import Part, StoredOutputsDataModule

OVERCONFIDENCE, OFFSET = 1.6, 3.0


def voxels(count: int, num_classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits ``(C, n)`` and labels ``(n,)`` drawn from a linear map of the logits before overconfidence."""
    generator = torch.Generator().manual_seed(seed)
    world = torch.Generator().manual_seed(1)  # the same confusions for every seed
    frequency = 1 / torch.arange(1, num_classes + 1)
    winner = torch.multinomial(frequency, count, replacement=True, generator=generator)
    logits = 1.5 * torch.randn(num_classes, count, generator=generator)
    logits[winner, torch.arange(count)] += 6 + 2.5 * torch.randn(count, generator=generator)
    mixing = torch.eye(num_classes) + 0.5 * torch.randn(num_classes, num_classes, generator=world) / num_classes**0.5
    scores = mixing @ logits + 0.5 * torch.randn(num_classes, 1, generator=world)
    target = (scores - torch.empty_like(scores).exponential_(generator=generator).log_()).max(0).indices
    return logits * OVERCONFIDENCE + OFFSET * torch.randn(count, generator=generator), target


def stored_voxels(data: StoredOutputsDataModule, part: Part) -> tuple[Tensor, Tensor]:
    """All voxels of a part that count, as other libraries take them: logits ``(n, C)`` and labels ``(n,)``."""
    logits, labels = [], []
    for images, target, _ in data.batches(part):
        counted = target.flatten() != data.ignore_index
        logits.append(images[0].flatten(1).T[counted])
        labels.append(target.flatten()[counted])
    return torch.cat(logits), torch.cat(labels).long()


def some_stored_voxels(outputs: str, count: int) -> tuple[Tensor, Tensor]:
    """Logits ``(C, n)`` and labels ``(n,)`` of the same random voxels of 30 cases whenever it is called."""
    data = StoredOutputsDataModule(outputs, pooling="z", cal=30, val=0, test=None, cache=False)
    logits, target = some(*stored_voxels(data, "cal"), count)
    return logits.T.contiguous(), target


def some(logits: Tensor, target: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """Logits ``(n, C)`` and labels of at most so many voxels at random, the same whenever it is called."""
    if most is None or len(target) <= most:
        return logits, target
    chosen = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))[:most]
    return logits[chosen], target[chosen]


class MappedImages:
    """Images of a million voxels in memory-mapped files; reads them again on every iteration.

    Args:
        folder: where the files are written.
        count: voxels in all.
        num_classes: ``C``.
        image: voxels in an image.
    """

    def __init__(self, folder: Path, count: int, num_classes: int, image: int = 1_000_000) -> None:
        self.folder, self.image, self.num_images = folder, min(image, count), max(1, count // image)
        self.num_classes = num_classes
        for number in range(self.num_images):
            if not self._path("target", number).exists():
                logits, target = voxels(self.image, num_classes, seed=number)
                np.save(self._path("logits", number), logits.numpy())
                np.save(self._path("target", number), target.numpy())

    def __iter__(self):  # noqa: ANN204
        """Batches of one image."""
        for number in range(self.num_images):
            logits = np.load(self._path("logits", number), mmap_mode="c")
            target = np.load(self._path("target", number), mmap_mode="c")
            yield torch.from_numpy(logits)[None], torch.from_numpy(target)[None], [str(number)]

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{self.image}-{number}.npy"
