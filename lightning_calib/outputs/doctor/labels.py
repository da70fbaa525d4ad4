"""Faults that show over many cases only: scores against labels, members against each other."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from lightning_calib.outputs.doctor.finding import Finding
from lightning_calib.outputs.doctor.sample import Sample, view_scores
from lightning_calib.outputs.manifest import Manifest

_GAIN = 0.2  # by how much a mean recall must rise for another order to be the likelier one
_FEW = 50  # voxels below which a class says nothing about the order of classes
_SHARE = 0.01  # of the labels, from which a class that is never predicted is worth a word
_UNKNOWN = 1e-3  # mean probability that a network gives to a class it was never trained on
_VOID = re.compile(r"(void|un-?label+ed|unknown|undefined|ignored?|don'?t.?care|out of roi|not labelled)", re.I)

Confusion = Tensor  # (C, C) int64: rows are labels, columns predictions


def label_range(sample: Sample) -> str | None:
    """Labels that are neither a class nor ``ignore_index``."""
    manifest = sample.case.manifest
    wrong = manifest.foreign(sample.labels)
    if not wrong.any():
        return None
    counts = sorted(Counter(sample.labels[wrong].tolist()).items())
    listed = ", ".join(f"{label} ({count:,} voxels)" for label, count in counts[:5])
    return f"labels {listed} where classes are 0 to {manifest.num_classes - 1} and ignore_index {manifest.ignore_index}"


class Agreement:
    """Confusion of pooled predictions with labels, in the stored order of axes and in others.

    Args:
        manifest: facts of the store.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        classes = manifest.num_classes
        self.confusions: dict[str, Confusion] = {}
        self.plain: dict[str, Confusion] = {}  # the stored order, over those cases that allow the other one
        self.mass = torch.zeros(classes, dtype=torch.float64)  # probability of a class, summed over its own voxels
        self.share = torch.zeros(classes, dtype=torch.float64)  # sampled labels of each class

    def add(self, sample: Sample) -> None:
        """Count the voxels of a case."""
        counted = sample.counted
        target = sample.target[counted]
        classes = self.manifest.num_classes
        labels = sample.labels[(sample.labels >= 0) & (sample.labels < classes)]
        self.share += torch.bincount(labels, minlength=classes).double()
        for name, scores in self._views(sample):
            mean = scores[..., counted].mean(dim=0)  # (C, N)
            pairs = torch.bincount(target * classes + mean.argmax(0), minlength=classes**2).view(classes, classes)
            self.confusions[name] = self.confusions.get(name, 0) + pairs
            if name == "":
                plain = pairs
                own = mean.softmax(0).gather(0, target[None])[0]
                self.mass.index_add_(0, target, own.double())
            self.plain[name] = self.plain.get(name, 0) + plain

    def _views(self, sample: Sample) -> Iterator[tuple[str, Tensor]]:
        """Scores as they are (name ""), and with two axes of equal length swapped or a spatial one reversed."""
        yield "", sample.scores
        members = sample.scores.shape[0] if self.manifest.keep == "pooled" else self.manifest.num_members
        shape = (members, self.manifest.num_classes, *sample.case.shape)
        names = ["member axis", "class axis", *(f"spatial axis {axis}" for axis in range(len(sample.case.shape)))]
        ours = self.manifest.preprocessing is not None  # written by us from the images: members are where they belong
        first = 1 if ours or self.manifest.keep == "pooled" else 0
        for a, b in combinations(range(first, len(shape)), 2):
            if shape[a] == shape[b] and not (a == 0 and b > 1):
                yield f"{names[a]} and {names[b]} swapped", view_scores(sample, axes=(a, b))
        for axis in range(len(sample.case.shape)):
            yield f"{names[axis + 2]} reversed", view_scores(sample, flip=axis)

    def findings(self) -> Iterator[Finding]:
        """What the sums say."""
        if "" not in self.confusions or not self.confusions[""].any():
            return
        explanations = [each for each in (self._axes(), self._class_order()) if each is not None]
        if explanations:
            yield max(explanations, key=lambda each: each[0])[1]
        suspects = self._suspects()
        if suspects:
            yield self._void(suspects)
        if not explanations and (never := self._never_predicted(suspects)) is not None:
            yield never
        if (one := self._one_class()) is not None:
            yield one

    def _is_better(self, now: float, other: float) -> bool:
        """Whether a mean recall is well above another one and above chance."""
        return other >= max(now, 1 / self.manifest.num_classes) + _GAIN

    def _axes(self) -> tuple[float, Finding] | None:
        recalls = {
            name: (mean_recall(self.plain[name]), mean_recall(confusion)) for name, confusion in self.confusions.items()
        }
        best = max(recalls, key=lambda name: recalls[name][1] - recalls[name][0])
        now, other = recalls[best]
        if not self._is_better(now, other):
            return None
        return other, Finding(
            "swapped_axes",
            "error",
            f"predictions hit {now:.0%} of each class's voxels on average, but {other:.0%} with the {best}",
            "scores and labels were written with different orders of axes; NIfTI files run the other way than arrays",
            "bring the scores to (members, classes, *shape of the target) before they are stored; "
            "`import folder` has --class_axis and --member_axis",
        )

    def _class_order(self) -> tuple[float, Finding] | None:
        confusion = self.confusions[""]
        present = (confusion.sum(1) >= _FEW).nonzero().flatten()
        if len(present) < 2:
            return None
        recall = (confusion[present].double() / confusion[present].sum(1, keepdim=True)).numpy()
        rows, columns = linear_sum_assignment(-recall)
        now, best = float(recall[range(len(present)), present].mean()), float(recall[rows, columns].mean())
        if not self._is_better(now, best):
            return None
        names = self.manifest.class_names
        moved = [(int(present[r]), int(c)) for r, c in zip(rows, columns, strict=True) if present[r] != c]
        listed = ", ".join(f"{names[label]} is predicted as {names[column]}" for label, column in moved[:4])
        return best, Finding(
            "class_order",
            "error",
            f"predictions hit {now:.0%} of each class's voxels on average, but {best:.0%} with classes in another "
            f"order: {listed}",
            "labels were renumbered after training, the class axis runs the other way, or networks are hardly trained",
            "number labels and score channels in the same way, or train longer; then import or predict again",
        )

    def _suspects(self) -> dict[int, bool]:
        """Classes called void, or there among the labels while no network knows them: both for True."""
        confusion, names = self.confusions[""], self.manifest.class_names
        called = {c for c, name in enumerate(names) if _VOID.fullmatch(name.strip())}
        labelled, predicted = confusion.sum(1), confusion.sum(0)
        share = self.share / self.share.sum().clamp(min=1)
        own = self.mass / labelled.clamp(min=1)
        unknown = {
            c
            for c in range(len(names))
            if share[c] >= _SHARE and labelled[c] >= _FEW and predicted[c] == 0 and own[c] < _UNKNOWN
        }
        return {c: c in called & unknown for c in sorted(called | unknown)}

    def _void(self, suspects: dict[int, bool]) -> Finding:
        confusion, names = self.confusions[""], self.manifest.class_names
        labelled, predicted = confusion.sum(1), confusion.sum(0)
        share = self.share / self.share.sum().clamp(min=1)
        own = self.mass / labelled.clamp(min=1)
        told = "; ".join(
            f"class {c} ({names[c]}) has {share[c]:.1%} of the labels, {int(predicted[c]):,} of "
            f"{int(confusion.sum()):,} predictions and a mean probability of {own[c]:.1g} where it is right"
            for c in suspects
        )
        return Finding(
            "void_class",
            "error" if any(suspects.values()) else "warning",
            told,
            "voxels without a label were given a class of their own and counted: they then dominate NLL and ECE",
            "give such voxels the ignore_index and leave the class out of class_names; a real class that the networks "
            "never learnt may stay",
        )

    def _never_predicted(self, suspects: Collection[int]) -> Finding | None:
        """Classes among the labels that the ensemble predicts nowhere; those that may be void are told as such."""
        confusion, names = self.confusions[""], self.manifest.class_names
        labelled, predicted = confusion.sum(1).tolist(), confusion.sum(0).tolist()
        never = [c for c in range(len(names)) if labelled[c] >= _FEW and not predicted[c] and c not in suspects]
        if not never:
            return None
        told = "; ".join(
            f"{names[c]}: {labelled[c]:,} of {int(confusion.sum()):,} voxels looked at are labelled so, 0 predicted so"
            for c in never
        )
        return Finding(
            "never_predicted",
            "warning",
            told,
            "the class is rare or small, and the networks have not learnt to find it",
            "train longer, or with a loss that weighs rare classes (dice_balanced_ce); calibration that keeps the "
            "segmentation cannot bring the class back, and its confidences cannot be judged",
        )

    def _one_class(self) -> Finding | None:
        """All labels of one class."""
        present = self.share.nonzero().flatten().tolist()
        if len(present) != 1:
            return None
        return Finding(
            "one_class",
            "warning",
            f"all {int(self.share.sum()):,} labels looked at are {self.manifest.class_names[present[0]]}",
            "masks were read with another coding (0 and 255, say), or only cases without a finding were stored",
            "look at the masks; with one class there is nothing to be wrong about, and calibrators learn to be sure",
        )


class Twins:
    """Pairs of members that agreed in every voxel so far.

    Args:
        manifest: facts of the store.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        known = [member.sha256 for member in manifest.members]
        pairs = list(combinations(range(manifest.num_members), 2))
        self.checkpoints = {(a, b) for a, b in pairs if known[a] and known[a] == known[b]}
        self.equal = set(pairs) if manifest.keep == "members" else set()
        self.voxels = 0

    def add(self, sample: Sample) -> None:
        """Compare the members on one more case."""
        self.voxels += int(sample.valid.sum())
        scores = sample.scores[..., sample.valid]
        self.equal = {(a, b) for a, b in self.equal if scores.shape[-1] == 0 or bool((scores[a] == scores[b]).all())}

    def finding(self) -> Finding | None:
        """The finding on members that are equal, or None."""
        equal = self.equal if self.voxels else set()
        pairs = sorted(equal | self.checkpoints)
        if not pairs:
            return None
        names = [member.name for member in self.manifest.members]
        listed = ", ".join(f"{names[a]} = {names[b]}" for a, b in pairs[:5]) + (", ..." if len(pairs) > 5 else "")
        how = f"the same scores in all {self.voxels:,} voxels" if equal else "checkpoints of the same hash"
        return Finding(
            "identical_members",
            "error",
            f"{len(pairs)} pair(s) of members have {how}: {listed}",
            "one checkpoint was loaded for several members, or they were trained with the same seed",
            "name a checkpoint of its own for each member, trained with its own seed, and predict again",
        )


def mean_recall(confusion: Confusion) -> float:
    """Mean over classes with enough voxels of the share that is predicted right.

    Example:
        >>> mean_recall(torch.tensor([[90, 10], [50, 50]]))
        0.7
    """
    present = confusion.sum(1) >= _FEW
    if not present.any():
        return 0.0
    return round(float((confusion.diagonal()[present].double() / confusion.sum(1)[present]).mean()), 6)
