"""Stacks by groups: candidates of one pooling, mixed by what they say about groups that they had not seen."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lightning_calib.calibrators import PipelineName, Stack
from lightning_calib.experiment.selection.evidence import Evidence
from lightning_calib.experiment.selection.held_out import HeldOutSample
from lightning_calib.experiment.selection.ladder import LADDER, HeldOutPath
from lightning_calib.experiment.selection.statistics import strongest_within
from lightning_calib.experiment.statistics import Floats
from lightning_calib.functional.cones import Cone
from lightning_calib.functional.pooling import POOLINGS, Pooling
from lightning_calib.solvers.stacking import StackWeights, fit_weights

_KEPT: dict[Cone | None, tuple[Cone | None, ...]] = {
    "order": ("order",),
    "argmax": ("order", "argmax"),
    None: ("order", "argmax", None),
}


@dataclass(frozen=True)
class Stacked:
    """A fitted stack, and what its weights rest on.

    Attributes:
        pipeline: ``stack(p)`` or ``stack(z)``.
        calibrator: parts of positive weight, fitted on all cases.
        parts: all candidates, the identity first.
        strengths: of the ridge of each.
        weights: weight of each, with the certificate.
        nll: NLL of each group ``(G,)`` under weights that were fitted without it, from fits that had not seen it.
    """

    pipeline: str
    calibrator: Stack
    parts: tuple[str, ...]
    strengths: tuple[float, ...]
    weights: StackWeights
    nll: Floats

    @property
    def certificate(self) -> dict[str, Any]:
        """Weights and strengths of the parts as plain types, and what is known about the weights."""
        facts = asdict(self.weights)
        del facts["weights"], facts["part_nll"]
        parts = zip(self.parts, self.strengths, self.weights.weights, strict=True)
        used = {name: {"strength": f"{strength:g}", "weight": weight} for name, strength, weight in parts if weight > 0}
        return {"solver": "stacking", "parts": used, **facts}

    @property
    def path(self) -> HeldOutPath:
        """As a candidate of the ladder; it has one strength."""
        return HeldOutPath(self.pipeline, (0.0,), self.nll[None], hedges=True)


def parts_of(pooling: Pooling) -> tuple[str, ...]:
    """What a stack mixes: pipelines of the ladder that look at single voxels and keep the order, as it then does.

    Example:
        >>> parts_of("p")
        ('identity(p)', 'ts(p)', 'gs(p)', 'cms_op(p)')
    """
    own = [name for name in map(PipelineName.parse, LADDER) if name.pooling == pooling]
    return tuple(str(name) for name in own if name.preserves == "order" and name.cls.looks_at == "voxel")


def stack_by_groups(evidence: Evidence, pooling: Pooling, keep: Cone | None = "order", floor: float = 0.0) -> Stacked:
    """Weigh the candidates of one pooling by their held-out NLL, and fit those with a weight on all cases.

    It is the identity where there are too few groups to tell.

    Args:
        evidence: the cross-fitted candidates, the identity of the pooling among them; each at its best strength.
        pooling: of the stack.
        keep: take only candidates that keep at least this much of the ranking: the stack then keeps it, too. Those that
            look at more than single voxels are left out.
        floor: least weight of the identity; ``-log(floor)`` then bounds what a voxel can lose.
    """
    if evidence.table is None:
        return _identity(evidence, pooling)
    names = {name: PipelineName.parse(name) for name in evidence.table.names}
    own = [text for text, name in names.items() if name.cls.looks_at == "voxel" and name.preserves in _KEPT[keep]]
    strengths = {path.pipeline: path.strengths[strongest_within(path.nll, 0.0)] for path in evidence.table.paths}
    sample = evidence.sample(pooling, strengths, own)
    weights = fit_weights(sample.log_q, sample.weights, floor)
    used = [k for k, weight in enumerate(weights.weights) if weight > 0]
    parts = [evidence.fit(sample.pipelines[k], sample.strengths[k])[0] for k in used]
    return Stacked(
        pipeline=f"stack({pooling})",
        calibrator=Stack.of(parts, [weights.weights[k] for k in used]),
        parts=sample.pipelines,
        strengths=sample.strengths,
        weights=weights,
        nll=nll_without_each(sample, floor),
    )


def _identity(evidence: Evidence, pooling: Pooling) -> Stacked:
    """The stack of the identity alone."""
    calibrator = Stack(evidence.manifest.num_classes, evidence.manifest.spatial_dims)
    alone = StackWeights((1.0,), math.nan, (math.nan,), 0.0, 0)
    return Stacked(f"stack({pooling})", calibrator, (f"identity({pooling})",), (0.0,), alone, np.zeros(0))


def is_stack(pipeline: str) -> bool:
    """Whether a pipeline is a stack of others.

    Example:
        >>> is_stack("stack(p)"), is_stack("ts(p)")
        (True, False)
    """
    return PipelineName.parse(pipeline).cls.solver == "stacking"


def with_parts(candidates: Iterable[str]) -> tuple[str, ...]:
    """Pipelines to cross-fit: the candidates, the identity of their poolings, and the parts of stacks in their place.

    Example:
        >>> with_parts(["dc(z)", "stack(p)"])
        ('identity(z)', 'dc(z)', 'identity(p)', 'ts(p)', 'gs(p)', 'cms_op(p)')
    """
    found: list[str] = []
    for name in candidates:
        pooling = PipelineName.parse(name).pooling
        found += parts_of(pooling) if is_stack(name) else (f"identity({pooling})", name)
    return tuple(dict.fromkeys(found))


def stacks_of(evidence: Evidence) -> list[Stacked]:
    """The stack of each pooling; none where a single candidate has all the weight, or there are too few groups."""
    if evidence.table is None:
        return []
    poolings = [pooling for pooling in POOLINGS if f"identity({pooling})" in evidence.table.names]
    return [found for pooling in poolings if len((found := stack_by_groups(evidence, pooling)).calibrator.parts) > 1]


def nll_without_each(sample: HeldOutSample, floor: float = 0.0) -> Floats:
    """NLL of each group ``(G,)`` by weights from the other groups: what the weights gain is not judged on their own."""
    found = []
    for group in range(int(sample.group.max()) + 1):
        own = sample.group == group
        weights = fit_weights(sample.log_q[:, ~own], sample.weights[~own], floor).weights
        log_q = sample.log_q[:, own].astype(np.float64)
        top = log_q.max(axis=0)
        loss = -np.log(np.asarray(weights) @ np.exp(log_q - top)) - top
        found.append(np.average(loss, weights=sample.weights[own]))
    return np.array(found)
