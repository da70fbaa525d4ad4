"""Frozen ensemble outputs as a Lightning DataModule."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_calib.datasets.base import collate
from lightning_calib.datasets.sampling import EpochSampler, SampleKey, world
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.fit_batches import Batch, ImageBatches, StepSampler, VoxelBatches
from lightning_calib.outputs.partition import PARTS, Size, Sizes, Split, make_split, whole_groups
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import Outside, StoredCases

__all__ = ["Outside", "Part", "Size", "Sizes", "Split", "StoredOutputsDataModule", "make_split"]

Part = Literal["cal", "val", "test"]
CaseBatch = tuple[Tensor, Tensor, list[str]] | tuple[Tensor, Tensor, list[str], Tensor]
TrainBatches = Literal["cases", "voxels", "images"]


class CaseDataset(Dataset[Batch]):
    """Whole cases, one a sample."""

    def __init__(
        self, cases: StoredCases, case_ids: Sequence[str], distances: bool = False, features: Sequence[str] = ()
    ) -> None:
        self.cases, self.case_ids, self.distances, self.features = cases, list(case_ids), distances, features

    def __len__(self) -> int:
        """Number of cases."""
        return len(self.case_ids)

    def __getitem__(self, key: SampleKey | int) -> Batch:
        """``logits (C, *S)``, ``target (*S)``, ``case_id``; if asked for, ``distance (*S)``, ``features (F, *S)``."""
        case_id = self.case_ids[SampleKey.of(key).position]
        logits, target = self.cases.read(case_id)
        sample: Batch = {"logits": logits, "target": target, "case_id": case_id}
        if self.distances:
            sample["distance"] = self.cases.distance(case_id)
        if self.features:
            sample["features"] = self.cases.features(case_id, self.features)
        return sample


class CaseStream:
    """Batches ``(logits (1, C, *S), target (1, *S), [case_id])`` of some cases; can be gone through repeatedly.

    Args:
        cases: where they are.
        case_ids: those to use.
        features: names of the features ``(1, F, *S)`` that batches have as a fourth entry; none by default.
    """

    def __init__(self, cases: StoredCases, case_ids: Sequence[str], features: Sequence[str] = ()) -> None:
        self.cases, self.case_ids, self.features = cases, list(case_ids), features

    def __len__(self) -> int:
        """Number of cases."""
        return len(self.case_ids)

    def __iter__(self) -> Iterator[CaseBatch]:
        """One pass."""
        for case_id in self.case_ids:
            logits, target = self.cases.read(case_id)
            features = self.cases.feature_batch(case_id, self.features)
            batch = (logits[None], target[None], [case_id])
            yield batch if features is None else (*batch, features)


class StoredOutputsDataModule(LightningDataModule):
    """Stored outputs of an ensemble, pooled and partitioned.

    Training batches come from ``cal``, validation batches from ``val``, test batches from ``test``. Batches are
    dicts with ``logits (B, C, *S)`` (pooled, float32), ``target (B, *S)`` (voxels that do not count are
    ``ignore_index``) and ``case_id``; test batches also hold ``distance (B, *S)``, and all of them hold ``features
    (B, F, *S)`` where :attr:`feature_names` names some. Arrays are mapped from files: memory does not grow with the
    store.

    Args:
        outputs: folder of the store, or the opened store.
        pooling: ``z``, ``p`` or ``p0``.
        repeat: which of the partitions that ``seed`` gives.
        cal: size of the calibration part: a number of cases, a share, a list of ids, a text file of ids, or null
            for what the others leave over.
        val: size of the validation part.
        test: size of the test part.
        seed: seed of partitions and of the order of batches.
        group_aware: keep cases of one group (patient, sequence, tile) in one part, at the level that the data set
            keeps whole.
        group_level: keep groups of this level whole, such as ``site``; null leaves it to ``group_aware``.
        outside: what voxels count as that were never predicted: ``exclude``, ``background_certain`` or
            ``one_hot_logits``.
        cache: keep pooled maps and boundary distances on disk beside the store.
        train_batches: ``cases`` for whole cases (newton), ``voxels`` for random voxels (adam), ``images`` for
            whole images or crops (calibrators that look at neighbours).
        batch_voxels: voxels a batch, over all processes.
        batch_images: images a batch, over all processes; null for one a process.
        crop: size of random crops of images; null for whole images.
        memory: bytes of voxels that are shuffled together.

    Attributes:
        feature_names: features that batches hold; whoever uses the data sets it to what its calibrators look at.

    Example:
        >>> data = StoredOutputsDataModule("runs/camvid/outputs", cal=50, val=50)  # doctest: +SKIP
        >>> data.train_dataloader()  # doctest: +SKIP
    """

    def __init__(
        self,
        outputs: str | Path | OutputStore,
        pooling: Pooling = "p",
        repeat: int = 0,
        cal: Size = 0.5,
        val: Size = 0.2,
        test: Size = None,
        seed: int = 0,
        group_aware: bool = False,
        group_level: str | None = None,
        outside: Outside = "exclude",
        cache: bool = True,
        train_batches: TrainBatches = "cases",
        batch_voxels: int = 65_536,
        batch_images: int | None = None,
        crop: list[int] | None = None,
        memory: int = 2**29,
    ) -> None:
        super().__init__()
        if batch_voxels < 1 or (batch_images is not None and batch_images < 1):
            raise ValueError(f"batch_voxels = {batch_voxels}, batch_images = {batch_images}: give at least 1")
        self.store = outputs if isinstance(outputs, OutputStore) else OutputStore(outputs)
        self.cases = StoredCases(self.store, pooling, outside, cache)
        groups = whole_groups(self.store, group_aware, group_level)
        self.split = make_split(self.store, repeat, Sizes(cal, val, test), seed, groups)
        self.repeat, self.seed = repeat, seed
        self.train_batches, self.batch_voxels, self.batch_images = train_batches, batch_voxels, batch_images
        self.crop, self.memory = crop, memory
        self.feature_names: tuple[str, ...] = ()
        self._refuse_unlabelled()

    @property
    def pooling(self) -> Pooling:
        """How members are pooled."""
        return self.cases.pooling

    @pooling.setter
    def pooling(self, pooling: Pooling) -> None:
        self.cases = StoredCases(self.store, pooling, self.cases.outside, self.cases.cache.enabled)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.store.manifest.num_classes

    @property
    def class_names(self) -> list[str]:
        """Names of the classes."""
        return list(self.store.manifest.class_names)

    @property
    def spatial_dims(self) -> int:
        """2 for images, 3 for volumes."""
        return self.store.manifest.spatial_dims

    @property
    def background(self) -> int | None:
        """Number of the background class, where there is one."""
        return self.store.manifest.background

    @property
    def ignore_index(self) -> int:
        """Label of voxels that count nowhere."""
        return self.cases.ignore_index

    def ids(self, part: Part) -> tuple[str, ...]:
        """Cases of a part."""
        return tuple(getattr(self.split, part))

    def batches(self, part: Part) -> CaseStream:
        """All cases of a part as ``(logits, target, case_ids)``, for loops without Lightning; features come fourth."""
        return CaseStream(self.cases, self.ids(part), self.feature_names)

    def distance(self, case_id: str) -> Tensor:
        """Distance ``(*S)`` of each voxel to the target's boundary."""
        return self.cases.distance(case_id)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of ``cal`` in the form that ``train_batches`` names."""
        options: dict[str, Any] = {"cases": self.cases, "case_ids": self.ids("cal"), "seed": self.seed}
        options["features"] = self.feature_names
        dataset: VoxelBatches | ImageBatches
        if self.train_batches == "voxels":
            dataset = VoxelBatches(batch_voxels=self.batch_voxels, memory=self.memory, **options)
        elif self.train_batches == "images":
            dataset = ImageBatches(batch_images=self.batch_images, crop=self.crop, **options)
        else:
            dataset = ImageBatches(shuffle=False, **options)
        return DataLoader(dataset=dataset, batch_size=None, sampler=StepSampler(len(dataset)), pin_memory=self._pinned)

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """Whole cases of ``val``; none where it is empty."""
        return self.case_dataloader("val") if self.ids("val") else []

    def test_dataloader(self) -> DataLoader[Batch]:
        """Whole cases of ``test`` with boundary distances."""
        return self.case_dataloader("test", distances=True)

    def case_dataloader(self, part: Part, distances: bool = False) -> DataLoader[Batch]:
        """Whole cases of a part, each exactly once over all processes."""
        case_ids, (_, replicas) = self.ids(part), world()
        if not case_ids:
            raise ValueError(f"{part} has no cases; give it a size")
        if len(case_ids) < replicas:
            raise ValueError(f"{part} has {len(case_ids)} cases for {replicas} processes; use fewer devices")
        return DataLoader(
            dataset=CaseDataset(self.cases, case_ids, distances, self.feature_names),
            batch_size=1,
            sampler=EpochSampler(len(case_ids), even=False),
            collate_fn=collate,
            pin_memory=self._pinned,
        )

    @property
    def _pinned(self) -> bool:
        """Whether a Trainer sends batches to a GPU; pinning without need would take a GPU's memory in every process."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _refuse_unlabelled(self) -> None:
        """Every part that has cases needs a voxel that counts."""
        for part in PARTS:
            case_ids = getattr(self.split, part)
            if case_ids and all(len(self.cases.counted(case_id)) == 0 for case_id in case_ids):
                raise ValueError(
                    f"all voxels of the {len(case_ids)} cases of {part} are ignored (label {self.ignore_index}) or "
                    f"were never predicted; the store is {self.store.path}"
                )
