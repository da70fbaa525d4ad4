"""Stacks by groups: candidates of one pooling, mixed by what they say about groups that they had not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_calib.calibrators import PipelineName, Stack
from lightning_calib.experiment.group_fit import GroupFitter
from lightning_calib.experiment.held_out import HeldOutSample
from lightning_calib.experiment.statistics import Floats
from lightning_calib.functional.cones import Cone
from lightning_calib.outputs.stored_cases import StoredCases
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


def stack_by_groups(
    cases: StoredCases,
    case_ids: Sequence[str],
    groups: Mapping[str, str],
    sample: HeldOutSample,
    keep: Cone | None = None,
    floor: float = 0.0,
) -> Stacked:
    """Weigh the candidates of a sample by their held-out NLL, and fit those with a weight on all cases.

    Args:
        cases: where the cases are.
        case_ids: cases of ``cal`` and ``val``, of which the sample is.
        groups: group of each of them.
        sample: held-out log-probabilities of one pooling, the identity first; ``Selection.samples`` has them.
        keep: take only candidates that keep at least this much of the ranking: the stack then keeps it, too.
        floor: least weight of the identity; ``-log(floor)`` then bounds what a voxel can lose.
    """
    chosen = keeping(sample, keep)
    weights = fit_weights(chosen.log_q, chosen.weights, floor)
    fitter = GroupFitter(cases, case_ids, groups)
    used = [k for k, weight in enumerate(weights.weights) if weight > 0]
    parts = [fitter(chosen.pipelines[k], chosen.strengths[k])[0] for k in used]
    return Stacked(
        pipeline=f"stack({PipelineName.parse(chosen.pipelines[0]).pooling})",
        calibrator=Stack.of(parts, [weights.weights[k] for k in used]),
        parts=chosen.pipelines,
        strengths=chosen.strengths,
        weights=weights,
        nll=nll_without_each(chosen, floor),
    )


def keeping(sample: HeldOutSample, keep: Cone | None) -> HeldOutSample:
    """The candidates that keep at least so much of the ranking."""
    if PipelineName.parse(sample.pipelines[0]).calibrator != "identity":
        raise ValueError(f"the first candidate of a stack is the identity, got {sample.pipelines[0]}")
    kept = [k for k, name in enumerate(sample.pipelines) if PipelineName.parse(name).preserves in _KEPT[keep]]
    return replace(
        sample,
        pipelines=tuple(sample.pipelines[k] for k in kept),
        strengths=tuple(sample.strengths[k] for k in kept),
        log_q=sample.log_q[kept],
    )


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
