"""What all 3D DataModules share: the way from a volume file to a batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_calib.datasets.base import SegmentationDataModule, Stage, at_least
from lightning_calib.datasets.cases import Case, Splits
from lightning_calib.datasets.checks import CaseFacts, label_facts
from lightning_calib.datasets.grids import Grid, nonzero_box
from lightning_calib.datasets.preprocessing import Preprocessing, record
from lightning_calib.datasets.sampling import SampleKey, generator
from lightning_calib.datasets.splits import check_fraction
from lightning_calib.datasets.volume_reader import Volume, VolumeReader, spacing_of
from lightning_calib.datasets.volume_transforms import Augmentation, VolumeAugment, pad_to, patch_start

ReadVolume = Callable[[Case, bool], Volume]
MixedSpacing = Literal["resample", "refuse"]


class VolumeDataset(Dataset[dict[str, Any]]):
    """Volumes of some cases, whole or in random patches.

    Args:
        cases: the cases, in order.
        read: gives a case with its target on the file's grid (True) or on the network's (False).
        patch_size: size of a patch; None gives whole volumes with the target on the file's grid.
        foreground: probability of a patch centred on foreground.
        augment: what happens to a patch.
        seed: seed of patches and augmentation.
        ignore_index: label that is no foreground.
        background: class that is no foreground.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        read: ReadVolume,
        patch_size: tuple[int, ...] | None = None,
        foreground: float = 0.0,
        augment: VolumeAugment | None = None,
        seed: int = 0,
        ignore_index: int | None = None,
        background: int = 0,
    ) -> None:
        self.cases, self.read, self.patch_size = list(cases), read, patch_size
        self.foreground, self.augment, self.seed = foreground, augment, seed
        self.ignore_index, self.background = ignore_index, background

    def __len__(self) -> int:
        """Number of cases."""
        return len(self.cases)

    def __getitem__(self, key: SampleKey | int) -> dict[str, Any]:
        """Sample of a key: ``image (channels, *S)`` float32, ``target (*S)`` int64, ``case_id``."""
        key = SampleKey.of(key)
        case = self.cases[key.position]
        if self.patch_size is None:
            return self._whole(case)
        image, target = self._patch(case, generator(self.seed, key, case.case_id))
        return {"image": _tensor(image), "target": _tensor(target.astype(np.int64)), "case_id": case.case_id}

    def _whole(self, case: Case) -> dict[str, Any]:
        volume = self.read(case, True)
        sample = {
            "image": _tensor(volume.image),
            "target": _tensor(volume.target.astype(np.int64)),
            "case_id": case.case_id,
            "geometry": volume.geometry,
        }
        return sample if volume.valid is None else sample | {"valid": _tensor(volume.valid)}

    def _patch(self, case: Case, rng: np.random.Generator) -> tuple[Any, Any]:
        assert self.patch_size is not None
        volume = self.read(case, False)
        image, target = pad_to(volume.image, volume.target, self.patch_size)
        start = patch_start(target, self.patch_size, self.foreground, self.background, self.ignore_index, rng)
        box = tuple(slice(a, a + n) for a, n in zip(start, self.patch_size, strict=True))
        image, target = image[(slice(None), *box)], target[box]
        return (image, target) if self.augment is None else self.augment(image, target, rng)


def _tensor(array: Any) -> Tensor:  # noqa: ANN401
    return torch.from_numpy(np.ascontiguousarray(array))


class VolumeDataModule(SegmentationDataModule):
    """Base of the 3D DataModules.

    Args:
        patch_size: size of training and validation patches along ``D, H, W``; smaller volumes are mirrored
            out. Validation patches are the same every epoch. The pool set always comes in whole volumes.
        foreground: probability that a patch is centred on foreground; nnU-Net's is a third.
        augmentation: none; light (mirroring, intensity); strong (also rotation, scale, noise, blur, gamma).
        options: those of :class:`~lightning_calib.datasets.base.SegmentationDataModule`.
    """

    spatial_dims = 3
    background = 0

    def __init__(
        self,
        patch_size: tuple[int, int, int] = (64, 64, 64),
        foreground: float = 0.33,
        augmentation: Augmentation = "light",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        at_least("patch_size", patch_size, 1)
        self.patch_size, self.augmentation = tuple(patch_size), augmentation
        self.foreground = check_fraction(foreground, "foreground")

    @property
    def preprocessing(self) -> Preprocessing:
        """What happens to a new volume."""
        return Preprocessing("volume", self.in_channels, record(self.file_reader()))

    def dataset(self, cases: Sequence[Case], stage: Stage) -> VolumeDataset:
        """Samples of some cases as a stage needs them."""
        return VolumeDataset(
            cases,
            self.reader(),
            patch_size=None if stage == "predict" else self.patch_size,
            foreground=self.foreground,
            augment=VolumeAugment(self.augmentation) if stage == "train" else None,
            seed=self.sample_seed if stage == "train" else 0,
            ignore_index=self.ignore_index,
            background=self.background or 0,
        )


class VolumeFileModule(VolumeDataModule):
    """Base of the 3D DataModules that read files; a subclass sets ``volume_reader`` before it adopts cases."""

    volume_reader: VolumeReader

    def reader(self) -> ReadVolume:
        """Reads files."""
        return self.volume_reader

    def settle_spacing(self, splits: Splits, mixed_spacing: MixedSpacing) -> list[str]:
        """Choose the voxel size that the network sees: the files' own, or the median of the training cases.

        Returns:
            One line where voxel sizes differ and may not.
        """
        try:
            spacings = {case.case_id: spacing_of(case.images[0]) for case in splits.all}
        except Exception:  # an unreadable file: the check of all files names it
            return []
        if not spacings or np.ptp(list(spacings.values()), axis=0).max(initial=0) < 1e-3:
            return []
        if mixed_spacing == "refuse":
            few = sorted(set(spacings.values()))[:3]
            shown = ", ".join(" x ".join(f"{s:.3g}" for s in spacing) for spacing in few)
            return [f"voxel sizes differ ({shown}, ...); set mixed_spacing: resample, or resample the files"]
        median = np.median([spacings[case.case_id] for case in splits.train], axis=0)
        self.volume_reader = replace(self.volume_reader, spacing=tuple(float(s) for s in median))
        return []

    def inspect(self, case: Case) -> CaseFacts:
        """Shape, spacing, content and class counts; raises where sizes differ or labels are out of range."""
        file, target = self.volume_reader.load(case)
        if len(file.array) != self.in_channels:
            raise ValueError(f"{case.images[0]}: {len(file.array)} channels, not {self.in_channels}")
        box = nonzero_box(self.volume_reader.inside(file.array)) if self.volume_reader.content_only else None
        facts = {"shape": list(target.shape), "spacing": list(file.spacing), "box": box}
        return facts | label_facts(target, self.num_classes, self.ignore_index)

    def recipe(self) -> str:
        """Also depends on whether volumes are cut to their content."""
        return super().recipe() + repr(self.volume_reader.content_only)

    def grid(self, case_id: str) -> Grid:
        """Grids of a case of the pool set."""
        if case_id not in self.facts:
            self.facts[case_id] = self.inspect(self._pool_case(case_id))
        facts = self.facts[case_id]
        return self.volume_reader.grid(tuple(facts["shape"]), tuple(facts["spacing"]), facts["box"])

    def _pool_case(self, case_id: str) -> Case:
        for case in self.splits.pool:
            if case.case_id == case_id:
                return case
        raise ValueError(f"{case_id!r} is no case of the pool set of {self.where}")

    def restore(self, logits: Tensor, case_id: str) -> Tensor:
        """Logits on the target's grid: resampled back, and zero where the network saw nothing."""
        return self.grid(case_id).restore(logits)
