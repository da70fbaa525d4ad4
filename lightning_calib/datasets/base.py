"""What all image DataModules share: facts, parts, loaders and the summary."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_calib.datasets.cases import CASE, Case, DataError, Splits, level_depth
from lightning_calib.datasets.checks import CaseFacts, scan
from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.datasets.sampling import EpochSampler
from lightning_calib.datasets.splits import assert_disjoint, check_fraction, make_folds
from lightning_calib.kit.files import FILE_NAMES, names_file

Sample = dict[str, Any]
Stage = Literal["train", "val", "predict"]


def collate(samples: Sequence[Sample]) -> Sample:
    """Batch of samples: tensors are stacked, everything else becomes a list.

    Example:
        >>> batch = collate([{"target": torch.zeros(4), "case_id": name} for name in "ab"])
        >>> batch["target"].shape, batch["case_id"]
        (torch.Size([2, 4]), ['a', 'b'])
    """
    batch: Sample = {}
    for name, value in samples[0].items():
        values = [sample[name] for sample in samples]
        if isinstance(value, Tensor) and len({v.shape for v in values}) > 1:
            sizes = ", ".join(f"{s['case_id']} {tuple(s[name].shape)}" for s in samples)
            raise ValueError(f"samples of a batch differ in size: {sizes}; set crop_size, image_size or batch_size: 1")
        batch[name] = torch.stack(values) if isinstance(value, Tensor) else values
    return batch


def at_least(option: str, value: int | Sequence[int] | None, least: int) -> None:
    """Refuse an option, or a side of a size, below ``least``; None passes."""
    sides = [value] if isinstance(value, int) else value or ()
    if any(side < least for side in sides):
        raise ValueError(f"{option} = {value}; give at least {least}")


def _misnamed(cases: Sequence[Case], levels: Sequence[str]) -> list[str]:
    """One line where cases do not have a group for each level."""
    wrong = [case for case in cases if len(case.groups) != len(levels)]
    return [
        f"{c.case_id}: groups {c.groups} for the levels {tuple(levels)}; group_levels names them" for c in wrong[:1]
    ]


def _unnameable(cases: Sequence[Case]) -> list[str]:
    """One line for each case whose outputs could not be stored under its name."""
    wrong = [case for case in cases if not names_file(case.case_id)]
    return [f"case {case.case_id!r} cannot name a file of outputs: {FILE_NAMES}; rename its files" for case in wrong]


def _misnumbered(names: Sequence[str], background: int | None, ignore: int | None) -> list[str]:
    """One line for each fault: names of classes, a background that is no class, an ignored label that is one."""
    classes = ", ".join(f"{number} {name}" for number, name in enumerate(names) if name.isprintable())
    found = [] if background is None or 0 <= background < len(names) else [f"background_class {background} is no class"]
    found += [f"ignore_label {ignore} is a class"] if ignore is not None and 0 <= ignore < len(names) else []
    found += ["one class or none; name two or more"] if len(names) < 2 else []
    found += ["two classes of one name; give each its own"] if len(set(names)) < len(names) else []
    found += [f"{name!r} cannot be printed on a line" for name in names if not name.isprintable() or not name.strip()]
    return [f"{text} (class_names: {classes})" for text in found]


class SegmentationDataModule(LightningDataModule):
    """Cases in three parts (training, validation, pool), and loaders for them.

    A subclass finds its files, and hands them to :meth:`adopt` at the end of its constructor.

    Args:
        batch_size: samples a batch in training and validation.
        num_workers: worker processes a loader; they change the speed, never the samples.
        seed: seed of order, crops and augmentation; None takes the one of ``seed_everything``, so that
            ensemble members differ by that alone.
        split_seed: seed of what belongs to which part; the same for all members of an ensemble.
        val_fraction: share of the training side that is held out for validation.
        folds: cut the training side into so many folds in place of one division by ``val_fraction``: the network of
            seed ``s`` trains without fold ``s mod folds``, which is its validation. Groups stay whole.
        samples_per_epoch: training samples an epoch; None for each case once.
        check: read every case before training starts, and refuse broken ones. What is found is cached.

    Attributes:
        name: name of the data set.
        class_names: names of the classes, in the order of their numbers.
        in_channels: channels of an image.
        spatial_dims: 2 for images, 3 for volumes.
        ignore_index: label of voxels that count nowhere; None where every voxel counts.
        background: number of the background class; None where there is none.
        group_levels: names of the levels of groups, coarsest first, such as ``("site", "patient")``.
        group_level: the level that no division tears apart; ``"case"`` where there is none.
    """

    name: str
    class_names: list[str]
    in_channels: int = 3
    spatial_dims: int = 2
    ignore_index: int | None = None
    background: int | None = None
    group_levels: tuple[str, ...] = ()
    group_level: str = CASE

    def __init__(
        self,
        batch_size: int = 8,
        num_workers: int = 0,
        seed: int | None = None,
        split_seed: int = 0,
        val_fraction: float = 0.1,
        samples_per_epoch: int | None = None,
        check: bool = True,
        folds: int | None = None,
    ) -> None:
        super().__init__()
        at_least("batch_size", batch_size, 1)
        at_least("num_workers", num_workers, 0)
        at_least("samples_per_epoch", samples_per_epoch, 1)
        at_least("folds", folds, 2)
        self.batch_size, self.num_workers = batch_size, num_workers
        self.seed, self.split_seed = seed, split_seed
        self.val_fraction = check_fraction(val_fraction, "val_fraction")
        self.samples_per_epoch, self.check, self.folds = samples_per_epoch, check, folds
        self.splits = Splits([], [], [])
        self.facts: dict[str, CaseFacts] = {}

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def sample_seed(self) -> int:
        """Seed of order, crops and augmentation in this process."""
        return int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.seed is None else self.seed

    @property
    def where(self) -> str:
        """Name of the data set and its place, for messages."""
        root = getattr(self, "root", None)
        return self.name if root is None else f"{self.name} ({root})"

    def inspect(self, case: Case) -> CaseFacts:
        """Facts on one case; raises if something is wrong with it."""
        raise NotImplementedError

    def dataset(self, cases: Sequence[Case], stage: Stage) -> Dataset[Sample]:
        """Samples of some cases as a stage needs them."""
        raise NotImplementedError

    def reader(self) -> Callable[..., Any]:
        """What reads a case."""
        raise NotImplementedError

    def file_reader(self) -> Callable[..., Any]:
        """What reads the files of a new image: the reader of cases, except where these are generated."""
        return self.reader()

    @property
    def preprocessing(self) -> Preprocessing:
        """What turns a new image into the networks' input, and their scores back; outputs are stored with it."""
        raise NotImplementedError

    def recipe(self) -> str:
        """Everything that :meth:`inspect` depends on apart from the files."""
        return repr((type(self).__qualname__, self.class_names, self.ignore_index))

    def adopt(self, splits: Splits, problems: Sequence[str] = ()) -> None:
        """Check the parts and take them on.

        Args:
            splits: the parts.
            problems: what was found to be wrong already; raised together with everything else.

        Raises:
            DataError: listing all problems.
        """
        found = [*problems, *_misnamed(splits.pool, self.group_levels), *_unnameable(splits.all)]
        found += _misnumbered(self.class_names, self.background, self.ignore_index)
        found += [
            f"no {part} cases of {self._counted(splits)}; add some, or have more of them in this part"
            for part in ("train", "pool")
            if not getattr(splits, part) and not found
        ]
        if self.check:
            self.facts, broken = scan(splits.all, self.inspect, self.recipe(), self.num_classes)
            found += broken
        if found:
            raise DataError(found, self.where)
        assert_disjoint(splits)
        self.take(splits)
        if self.folds is not None and len(self.fold_cases) < self.folds:
            problem = f"folds = {self.folds}, but the training side has {len(self.fold_cases)} groups; ask for fewer"
            raise DataError([problem], self.where)

    def _counted(self, splits: Splits) -> str:
        """How many cases there are, and groups that go into one part as a whole."""
        depth, told = level_depth(self.group_levels, self.group_level), f"{len(splits.all)} in all"
        groups = {case.group(depth) for case in splits.all}
        return f"{told}, which {len(groups)} {self.group_level}(s) keep together" if depth else told

    def take(self, splits: Splits) -> None:
        """Take parts on that were checked already, such as those of the run that they belong to."""
        self.splits = splits

    @property
    def fold_cases(self) -> list[list[Case]]:
        """Cases of each fold of the training side; empty where there are no folds."""
        if self.folds is None:
            return []
        depth = level_depth(self.group_levels, self.group_level)
        side = sorted((*self.splits.train, *self.splits.val), key=lambda case: case.case_id)
        groups = make_folds([case.group(depth) for case in side], self.split_seed, self.folds)
        return [[case for case in side if case.group(depth) in names] for names in groups]

    @property
    def parts(self) -> Splits:
        """The parts as the network of this seed knows them: of folds, one is its validation."""
        if self.folds is None:
            return self.splits
        folds, own = self.fold_cases, self.sample_seed % self.folds
        train = [case for number, fold in enumerate(folds) if number != own for case in fold]
        return replace(self.splits, train=train, val=folds[own])

    def out_of_fold(self) -> dict[str, int]:
        """Make the training side the pool set, and say for each case which fold holds it."""
        folds = self.fold_cases
        self.take(replace(self.splits, pool=[case for fold in folds for case in fold]))
        return {case.case_id: number for number, fold in enumerate(folds) for case in fold}

    @property
    def pool_ids(self) -> list[str]:
        """Ids of the pool set, in the order of prediction."""
        return [case.case_id for case in self.splits.pool]

    @property
    def groups(self) -> dict[str, str]:
        """Group of each case of the pool set: what a split must not tear apart."""
        depth = level_depth(self.group_levels, self.group_level)
        return {case.case_id: case.group(depth) for case in self.splits.pool}

    def restore(self, logits: Tensor, case_id: str) -> Tensor:
        """Bring logits from the grid the network saw to the target's grid.

        Args:
            logits: ``(C, *S_in)``.
            case_id: the case they belong to.

        Returns:
            ``(C, *S_target)``; here the same, since both grids are one.
        """
        return logits

    def _loader(self, cases: Sequence[Case], stage: Stage) -> DataLoader[Sample]:
        train = stage == "train"
        sampler = EpochSampler(
            len(cases),
            seed=self.sample_seed,
            shuffle=train,
            num_samples=self.samples_per_epoch if train else None,
            even=stage != "predict",
        )
        return DataLoader(
            dataset=self.dataset(cases, stage),
            batch_size=1 if stage == "predict" else self.batch_size,
            sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=collate,
            drop_last=train and len(sampler) > self.batch_size,  # a last batch of one upsets batch norm
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def train_dataloader(self) -> DataLoader[Sample]:
        """Training batches; the order is new every epoch."""
        return self._loader(self.parts.train, "train")

    def val_dataloader(self) -> DataLoader[Sample] | list[DataLoader[Sample]]:
        """Validation batches, the same every epoch; none where no case is held out."""
        held = self.parts.val
        return self._loader(held, "val") if held else []

    def predict_dataloader(self) -> DataLoader[Sample]:
        """Whole cases of the pool set, one by one."""
        return self._loader(self.splits.pool, "predict")

    def _told_groups(self) -> str:
        """Number of groups of the pool set at each level, in parentheses; empty without groups."""
        counted = [
            f"{level}: {len({case.group(depth) for case in self.splits.pool})}"
            for depth, level in enumerate(self.group_levels, start=1)
        ]
        return f" ({', '.join(counted)})" if counted else ""

    def class_shares(self) -> list[float] | None:
        """Share of each class among the labelled voxels; None if the cases were not read."""
        counts = [facts["counts"] for facts in self.facts.values() if "counts" in facts]
        total = np.sum(counts, axis=0) if counts else np.zeros(1)
        return (total / total.sum()).tolist() if total.sum() else None

    def summary(self) -> str:
        """What was found: parts, classes, and what was left out and why."""
        lines = [f"{self.where}: {self.spatial_dims}D, {self.in_channels} channels, {self.num_classes} classes"]
        counts = {part: len(getattr(self.parts, part)) for part in ("train", "val", "pool")}
        lines.append(
            f"  {counts['train']} training, {counts['val']} validation, {counts['pool']} pool cases"
            + self._told_groups()
        )
        shares = self.class_shares()
        percent = [""] * self.num_classes if shares is None else [f" {100 * share:.2f} %" for share in shares]
        lines.append("  classes: " + ", ".join(f"{n}{p}" for n, p in zip(self.class_names, percent, strict=True)))
        if self.ignore_index is not None:
            lines.append(f"  label {self.ignore_index} is ignored")
        reasons: dict[str, list[str]] = {}
        for case_id, reason in self.splits.left_out.items():
            reasons.setdefault(reason, []).append(case_id)
        for reason, ids in reasons.items():
            shown = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
            lines.append(f"  left out {len(ids)}, {reason}: {shown}")
        return "\n".join(lines)
