"""Batches of stored voxels or crops for gradient descent, the same whatever the number of processes.

A batch is asked for by (epoch, step); each process gets its share of it. The union over processes, and with it
the gradient, does not depend on their number, and no voxel is repeated to fill a share.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from lightning_calib.datasets.sampling import SampleKey, generator, world
from lightning_calib.outputs.stored_cases import StoredCases

Batch = dict[str, Any]


class StepSampler(DistributedSampler[SampleKey]):
    """Every step of an epoch, on every process.

    It is a ``DistributedSampler`` so that Lightning leaves it in place and calls ``set_epoch``.

    Args:
        steps: steps an epoch.

    Example:
        >>> list(StepSampler(2))
        [SampleKey(epoch=0, draw=0, position=0), SampleKey(epoch=0, draw=0, position=1)]
    """

    def __init__(self, steps: int) -> None:
        super().__init__(range(steps), num_replicas=1, rank=0)  # type: ignore[arg-type]
        self.steps = steps

    def __iter__(self) -> Iterator[SampleKey]:
        """Keys of the epoch."""
        return (SampleKey(self.epoch, 0, step) for step in range(self.steps))

    def __len__(self) -> int:
        """Steps an epoch."""
        return self.steps


class VoxelBatches(Dataset[Batch]):
    """Voxels in random order, in batches of about equal size.

    Cases are put into windows that fit into ``memory``. An epoch goes through the windows in a random order, and
    through the voxels of each in a random order: where all cases fit into one window, over all voxels.

    Args:
        cases: where voxels come from.
        case_ids: the cases to use.
        batch_voxels: most voxels in a batch, over all processes.
        seed: seed of the order.
        memory: bytes that a window may take.
        features: names of the features to go with the voxels.
    """

    def __init__(
        self,
        cases: StoredCases,
        case_ids: Sequence[str],
        batch_voxels: int = 65_536,
        seed: int = 0,
        memory: int = 2**29,
        features: Sequence[str] = (),
    ) -> None:
        self.cases, self.batch_voxels, self.seed, self.features = cases, batch_voxels, seed, features
        sizes = {case_id: len(cases.counted(case_id)) for case_id in case_ids}
        voxel_bytes = 4 * (cases.store.manifest.num_classes + len(features)) + 8
        self.windows = _windows(sizes, max(1, memory // voxel_bytes), seed)
        self.batches = [-(-sum(sizes[i] for i in window) // batch_voxels) for window in self.windows]
        self._loaded: tuple[int, Tensor, Tensor] | None = None
        self._order: tuple[tuple[int, int], Tensor] | None = None

    def __len__(self) -> int:
        """Batches an epoch."""
        return sum(self.batches)

    def __getitem__(self, key: SampleKey) -> Batch:
        """This process's share: ``logits (1, C, n)``, ``target (1, n)``, ``features (1, F, n)``; nothing ignored."""
        number, step = self._place(key)
        seen, target = self._load(number)
        rank, replicas = world()
        order = self._shuffled(key.epoch, number, len(target))
        chosen = order.tensor_split(self.batches[number])[step][rank::replicas]
        logits, features = seen[:, chosen].unsqueeze(0).tensor_split([self.cases.store.manifest.num_classes], dim=1)
        batch: Batch = {"logits": logits, "target": target[chosen].unsqueeze(0), "case_id": None}
        return batch | ({"features": features} if self.features else {})

    def _place(self, key: SampleKey) -> tuple[int, int]:
        """Window of a step, and the step's number in it."""
        step = key.position
        for number in np.random.default_rng([self.seed, key.epoch]).permutation(len(self.windows)).tolist():
            if step < self.batches[number]:
                return number, step
            step -= self.batches[number]
        raise IndexError(f"step {key.position} of {len(self)}")

    def _shuffled(self, epoch: int, number: int, size: int) -> Tensor:
        """Order of a window's voxels in an epoch; the last one is kept."""
        if self._order is None or self._order[0] != (epoch, number):
            order = np.random.default_rng([self.seed, epoch, number]).permutation(size)
            self._order = ((epoch, number), torch.from_numpy(order))
        return self._order[1]

    def _load(self, number: int) -> tuple[Tensor, Tensor]:
        """Voxels ``(C + F, n)`` of a window and their targets ``(n,)``; the last window is kept."""
        if self._loaded is None or self._loaded[0] != number:
            self._loaded = None  # two windows at a time would take twice the memory
            seen, target = [], []
            for case_id in self.windows[number]:
                index = self.cases.counted(case_id)
                logits, labels = self.cases.read(case_id)
                features = self.cases.features(case_id, self.features)
                maps = logits if features is None else torch.cat([logits, features])
                seen.append(maps.flatten(1)[:, index])
                target.append(labels.flatten()[index])
            self._loaded = (number, torch.cat(seen, dim=1), torch.cat(target))
        return self._loaded[1], self._loaded[2]


class ImageBatches(Dataset[Batch]):
    """Whole images or random crops, for full-batch solvers and for calibrators that look at neighbours.

    Every process takes as many steps: Lightning has them meet at each one. Where images run out, a process gets an
    empty batch.

    Args:
        cases: where images come from.
        case_ids: the cases to use.
        batch_images: images a batch, over all processes; None for one a process.
        crop: size of the crop; an image that is smaller along an axis stays whole there. None for whole images.
        shuffle: draw a new order every epoch; otherwise images come in the order of ``case_ids``.
        seed: seed of order and crops.
        features: names of the features to go with the images.
    """

    def __init__(
        self,
        cases: StoredCases,
        case_ids: Sequence[str],
        batch_images: int | None = None,
        crop: Sequence[int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        features: Sequence[str] = (),
    ) -> None:
        dims = cases.store.manifest.spatial_dims
        if crop is not None and (len(crop) != dims or min(crop) < 1):
            raise ValueError(f"crop = {list(crop)}: give {dims} sizes of 1 or more")
        self.cases, self.case_ids, self.seed, self.features = cases, list(case_ids), seed, features
        self.batch_images = world()[1] if batch_images is None else batch_images
        self.crop, self.shuffle = crop, shuffle

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-len(self.case_ids) // self.batch_images)

    def __getitem__(self, key: SampleKey) -> Batch:
        """This process's share of a batch, ``logits (b, C, *S)``, ``target (b, *S)``, features; b may be 0."""
        rank, replicas = world()
        order = np.arange(len(self.case_ids))
        if self.shuffle:
            order = np.random.default_rng([self.seed, key.epoch]).permutation(len(order))
        batch = order[key.position * self.batch_images :][: self.batch_images][rank::replicas]
        names = [self.case_ids[i] for i in batch]
        samples = [self._crop(self._read(name), name, key) for name in names]
        if len(samples) == 1:  # mapped from the file, not copied
            return {key: value[None] for key, value in samples[0].items()} | {"case_id": names}
        return self._stack(samples, names) if samples else self._empty()

    def _read(self, case_id: str) -> dict[str, Tensor]:
        logits, target = self.cases.read(case_id)
        features = self.cases.features(case_id, self.features)
        return {"logits": logits, "target": target} | ({} if features is None else {"features": features})

    def _stack(self, samples: list[dict[str, Tensor]], names: list[str]) -> Batch:
        if len({sample["target"].shape for sample in samples}) > 1:
            raise ValueError(
                f"cases {', '.join(names)} differ in size and cannot share a batch: set a crop, or batch_images to "
                "one a process"
            )
        stacked: Batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
        return stacked | {"case_id": names}

    def _empty(self) -> Batch:
        manifest = self.cases.store.manifest
        ones = (1,) * manifest.spatial_dims
        target = torch.zeros(0, *ones, dtype=torch.long)
        batch: Batch = {"logits": torch.zeros(0, manifest.num_classes, *ones), "target": target, "case_id": []}
        return batch | ({"features": torch.zeros(0, len(self.features), *ones)} if self.features else {})

    def _crop(self, sample: dict[str, Tensor], case_id: str, key: SampleKey) -> dict[str, Tensor]:
        if self.crop is None:
            return sample
        rng, shape = generator(self.seed, key, case_id), sample["target"].shape
        starts = [int(rng.integers(0, max(size - edge, 0) + 1)) for size, edge in zip(shape, self.crop, strict=True)]
        for axis, (start, edge) in enumerate(zip(starts, self.crop, strict=True), start=-len(shape)):
            length = min(edge, shape[axis])
            sample = {name: values.narrow(axis, start, length) for name, values in sample.items()}
        return sample


def _windows(sizes: dict[str, int], limit: int, seed: int) -> list[list[str]]:
    """Cases in random groups of at most ``limit`` voxels; a larger case is alone, one without voxels is left out."""
    names = [name for name, size in sorted(sizes.items()) if size]
    windows: list[list[str]] = []
    room = 0
    for index in np.random.default_rng(seed).permutation(len(names)):
        name = names[index]
        if sizes[name] > room or not windows:
            windows.append([])
            room = limit
        windows[-1].append(name)
        room -= sizes[name]
    return windows
