"""Faults that one case's scores show by themselves.

Each check looks at a sample of a case and returns the evidence, or None where there is nothing to say.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lightning_calib.functional.simplex import are_probabilities
from lightning_calib.outputs.cache import CONSTANT_SHARE
from lightning_calib.outputs.doctor.finding import Finding, Severity
from lightning_calib.outputs.doctor.sample import Sample

_FLOAT16_MAX = torch.finfo(torch.float16).max
_SURE = 0.95  # a probability that some voxels of any trained network exceed


@dataclass(frozen=True)
class Check:
    """A fault that cases can show one by one."""

    name: str
    severity: Severity
    look: Callable[[Sample], str | None]
    cause: str
    remedy: str

    def finding(self, seen: dict[str, str]) -> Finding:
        """The finding on all cases that show the fault, with the evidence of the first."""
        case_id, evidence = next(iter(seen.items()))
        return Finding(self.name, self.severity, f"case {case_id}: {evidence}", self.cause, self.remedy, tuple(seen))


def not_finite(sample: Sample) -> str | None:
    """NaN anywhere, or infinities that are no overflow of float16."""
    nan, inf = int(sample.scores.isnan().sum()), int(sample.scores.isinf().sum())
    if not nan and (not inf or sample.case.manifest.dtype == "float16"):
        return None
    return f"{nan:,} NaN and {inf:,} infinite among {sample.scores.numel():,} scores"


def float16_overflow(sample: Sample) -> str | None:
    """Scores at or beyond the end of float16's range in a store of that precision."""
    if sample.case.manifest.dtype != "float16":
        return None
    beyond = int((sample.scores.abs() >= _FLOAT16_MAX).sum())  # NaN compares as False
    return f"{beyond:,} scores at or beyond ±{_FLOAT16_MAX:,.0f}, the end of float16" if beyond else None


def softmax_as_logits(sample: Sample) -> str | None:
    """All scores in [0, 1] with sums of 1."""
    seen = sample.seen
    if not seen.numel() or not are_probabilities(seen):
        return None
    off = float((seen.sum(dim=1) - 1).abs().max())
    return (
        f"all {seen.shape[-1]:,} voxels hold values from {seen.min():.3g} to {seen.max():.3g} whose sum over classes "
        f"is 1 (within {off:.1g}), in a store of {sample.case.manifest.representation}"
    )


def double_softmax(sample: Sample) -> str | None:
    """Scores that are probabilities up to a shift of each voxel, some of them close to 1.

    ``log softmax(p) = p - log sum exp p`` differs from ``p`` by a shift. Shifting each voxel to a sum of 1
    gives ``p`` back; ordinary logits then leave [0, 1], or are too small to come near its end.
    """
    seen = sample.seen
    if not seen.numel() or are_probabilities(seen):
        return None
    shifted = seen + (1 - seen.sum(dim=1, keepdim=True)) / seen.shape[1]
    sure = float((shifted.amax(dim=1) >= _SURE).float().mean())
    if not are_probabilities(shifted) or sure < 0.01:
        return None
    top = float(seen.softmax(dim=1).amax())
    return (
        f"scores span at most {float((seen.amax(1) - seen.amin(1)).max()):.3f} a voxel and are probabilities up to a "
        f"shift, {sure:.0%} of them above {_SURE}; no confidence exceeds {top:.3f}"
    )


def constant_region(sample: Sample) -> str | None:
    """Neighbours with exactly the same scores in every member and class."""
    scores, valid = (each.reshape(*each.shape[:-1], -1, sample.run) for each in (sample.scores, sample.valid))
    pairs = valid[..., 1:] & valid[..., :-1]
    same = (scores[..., 1:] == scores[..., :-1]).all(dim=0).all(dim=0) & pairs
    share = int(same.sum()) / max(int(pairs.sum()), 1)
    if share < CONSTANT_SHARE or flat_classes(sample):
        return None
    row = scores[0, :, :, 1:][:, same][:, 0]
    text = ", ".join(f"{value:.4g}" for value in row[:6].tolist()) + (", ..." if len(row) > 6 else "")
    return (
        f"{share:.0%} of neighbouring voxels have exactly the same scores, such as ({text}), "
        f"a confidence of {float(row.softmax(0).max()):.3f}"
    )


def flat_classes(sample: Sample) -> str | None:
    """All classes with one and the same score."""
    seen = sample.seen
    if not seen.numel():
        return None
    flat = float((seen.amax(dim=1) == seen.amin(dim=1)).float().mean())
    return f"{flat:.0%} of voxels have one score for all {seen.shape[1]} classes" if flat > 0.99 else None


def not_normalised(sample: Sample) -> str | None:
    """Log-probabilities whose probabilities do not sum to 1."""
    if sample.case.manifest.representation != "log_probs" or not sample.seen.numel():
        return None
    if softmax_as_logits(sample):
        return None
    off = float(sample.seen.logsumexp(dim=1).abs().max())
    return f"log of the sum of probabilities is off 0 by up to {off:.3g}" if off > 0.05 else None


def all_ignored(sample: Sample) -> str | None:
    """No voxel that counts: all of them ignored or not valid."""
    if sample.counted.any():
        return None
    case = sample.case
    labels, valid = case.target, case.valid
    held = torch.ones_like(labels, dtype=torch.bool) if valid is None else valid
    ignored = case.manifest.ignore_index
    if ignored is not None:
        held = held & (labels != ignored)
    return None if held.any() else f"none of its {labels.numel():,} voxels has a label that counts"


CHECKS = (
    Check(
        "not_finite",
        "error",
        not_finite,
        "the training diverged, or an operation in mixed precision overflowed",
        "predict these cases again in float32, or leave them out of the store",
    ),
    Check(
        "float16_overflow",
        "error",
        float16_overflow,
        "logits beyond ±65,504 were cast to float16",
        "predict or import again with dtype float32",
    ),
    Check(
        "softmax_as_logits",
        "error",
        softmax_as_logits,
        "probabilities (after softmax) were stored as if they were scores before it; every confidence is then close to "
        "1 / C",
        "store the logits; if only probabilities exist, import them with --representation probs",
    ),
    Check(
        "double_softmax",
        "error",
        double_softmax,
        "the network ends in a softmax and softmax (or log-softmax) was applied to its output again",
        "store the output of the last linear layer, or import the first softmax with --representation probs",
    ),
    Check(
        "constant_region",
        "warning",
        constant_region,
        "part of the image was never predicted and filled with a constant, as nnU-Net fills what it crops away",
        "mark such voxels as not valid (`valid` of OutputWriter.write, --valid of import folder)",
    ),
    Check(
        "all_ignored",
        "warning",
        all_ignored,
        "the mask is empty, or was written with another coding of labels",
        "mend the mask, or leave the case out: it counts in no fit and no score",
    ),
    Check(
        "flat_classes",
        "error",
        flat_classes,
        "the array had no class axis (a label or confidence map), and was repeated over the classes",
        "store one score a class: (members, classes, *spatial)",
    ),
    Check(
        "not_normalised",
        "error",
        not_normalised,
        "logits were declared as log_probs, or sigmoid outputs of regions that overlap were stored",
        "declare logits as logits; regions that overlap are no classes and cannot be calibrated as such",
    ),
)
