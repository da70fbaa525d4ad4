"""Order and randomness of samples as a function of (seed, epoch, sample) alone.

Every sample is asked for by a key that carries its epoch, so that neither the number of worker processes nor
a resumed run changes what a sample looks like.
"""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch.distributed as dist
from torch.utils.data import DistributedSampler


class SampleKey(NamedTuple):
    """Which sample, and which draw of it: everything that its randomness may depend on.

    Attributes:
        epoch: epoch in which the sample is drawn.
        draw: how often the epoch has used the case before.
        position: place of the case in its part of the data set.
    """

    epoch: int
    draw: int
    position: int

    @classmethod
    def of(cls, key: "SampleKey | int") -> "SampleKey":
        """The key itself, or the first draw of epoch 0 for a plain index.

        Example:
            >>> SampleKey.of(7)
            SampleKey(epoch=0, draw=0, position=7)
        """
        return key if isinstance(key, SampleKey) else cls(0, 0, int(key))


def generator(seed: int, key: SampleKey, case_id: str) -> np.random.Generator:
    """Random numbers of one sample.

    The case enters by its name, not its position: the same case keeps its numbers when others come or go.

    Example:
        >>> key = SampleKey(epoch=3, draw=0, position=5)
        >>> bool(generator(1, key, "a").random() == generator(1, key._replace(position=6), "a").random())
        True
    """
    return np.random.default_rng([seed, key.epoch, key.draw, zlib.crc32(case_id.encode())])


def world() -> tuple[int, int]:
    """Rank of this process and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class EpochSampler(DistributedSampler[SampleKey]):
    """Sample keys of an epoch, shared out among the processes of a distributed run.

    It is a ``DistributedSampler`` so that Lightning leaves it in place and calls ``set_epoch``.

    Args:
        size: number of cases.
        seed: seed of the order.
        shuffle: draw a new order every epoch; otherwise cases come in order and as of epoch 0.
        num_samples: samples per epoch over all processes; None for each case once. More than ``size`` draws
            cases repeatedly, each time anew.
        even: give every process equally many samples by repeating some; otherwise each sample comes exactly
            once, whatever the number of processes.

    Example:
        >>> [key.position for key in EpochSampler(3, seed=0, shuffle=False)]
        [0, 1, 2]
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        shuffle: bool = False,
        num_samples: int | None = None,
        even: bool = True,
    ) -> None:
        rank, replicas = world()
        super().__init__(range(size), num_replicas=replicas, rank=rank, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]
        self.size, self.even = size, even
        self.total = size if num_samples is None else num_samples

    def keys(self) -> list[SampleKey]:
        """Keys of the whole epoch, over all processes."""
        epoch = self.epoch if self.shuffle else 0
        keys: list[SampleKey] = []
        while len(keys) < self.total and self.size:
            draw = len(keys) // self.size
            order = np.arange(self.size)
            if self.shuffle:
                order = np.random.default_rng([self.seed, epoch, draw]).permutation(self.size)
            keys += [SampleKey(epoch, draw, int(index)) for index in order]
        return keys[: self.total]

    def __iter__(self) -> Iterator[SampleKey]:
        """Keys of this process."""
        keys = self.keys()
        if self.even and keys:
            keys += [keys[i % len(keys)] for i in range(-len(keys) % self.num_replicas)]
        return iter(keys[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        """Number of keys of this process."""
        total = self.total if self.size else 0
        if self.even:
            return -(-total // self.num_replicas)
        return len(range(self.rank, total, self.num_replicas))
