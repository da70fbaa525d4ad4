"""Selection by groups: which pipeline, how strong a penalty, on what evidence; then the fit on all cases."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lightning_calib.calibrators import Calibrator, Identity
from lightning_calib.experiment.selection.evidence import Evidence, poolings_of
from lightning_calib.experiment.selection.folds import MIN_GROUPS, SAMPLE_VOXELS
from lightning_calib.experiment.selection.ladder import (
    ALPHA,
    LADDER,
    REFERENCE,
    WIDTH,
    Climb,
    HeldOut,
    Rung,
    climb,
    climb_without_each,
)
from lightning_calib.experiment.selection.stacking import Stacked, stacks_of, with_parts
from lightning_calib.experiment.selection.statistics import GroupGain, group_gain, groups_needed
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import Outside
from lightning_calib.solvers.sandwich import TemperatureInterval


@dataclass(frozen=True)
class Selection:
    """What was chosen, and why.

    Attributes:
        pipeline: the choice.
        strength: of its ridge, to be divided by the number of groups.
        calibrator: fitted on all cases.
        reason: the choice in a sentence or two.
        groups: number of groups.
        certificate: of the fit on all cases; empty where nothing is fitted.
        chosen: what the choice gains over the reference on groups that its fits had not seen.
        procedure: the same where also the choice was made without the group that judges it.
        picks: how often each pipeline is chosen when a group is left out.
        rungs: what became of each candidate.
        temperatures: temperature of each pooling, with an interval that is robust to what voxels of a group share.
        held_out: the table behind all this; None where there were too few groups.
    """

    pipeline: str
    strength: float
    calibrator: Calibrator
    reason: str
    groups: int
    certificate: dict[str, Any] = field(default_factory=dict)
    chosen: GroupGain | None = None
    procedure: GroupGain | None = None
    picks: dict[str, int] = field(default_factory=dict)
    rungs: tuple[Rung, ...] = ()
    temperatures: dict[str, TemperatureInterval] = field(default_factory=dict)
    held_out: HeldOut | None = None

    def to_dict(self) -> dict[str, Any]:
        """All but the calibrator as plain types for JSON; infinity is the text ``inf``."""
        facts = {name: value for name, value in vars(self).items() if name != "calibrator"}
        found: dict[str, Any] = plain(facts)
        return found


def select_by_groups(
    store: OutputStore,
    case_ids: Sequence[str],
    groups: Mapping[str, str],
    candidates: Sequence[str] = LADDER,
    seed: int = 0,
    alpha: float = ALPHA,
    width: float = WIDTH,
    voxels: int = SAMPLE_VOXELS,
    outside: Outside = "exclude",
    cache: bool = True,
) -> Selection:
    """Choose a pipeline by cross-fitting over groups, and fit it on all cases.

    The same arguments give the same result.

    Args:
        store: the outputs.
        case_ids: cases of ``cal`` and ``val``; no other is read.
        groups: group of each of them.
        candidates: pipelines, in any order: those that newton fits, and identities. Stacks of them take part, too; one
            that is named mixes what it does in a run.
        seed: seed of the folds.
        alpha: level of the one-sided tests.
        width: standard errors of the rule for strengths.
        voxels: size of the sample that candidates are fitted and judged on; the last fit takes all voxels.
        outside: what voxels count as that were never predicted.
        cache: keep pooled maps on disk beside the store.
    """
    evidence = Evidence(store, case_ids, groups, with_parts(candidates), seed, voxels, outside, cache)
    return choose(evidence, candidates, stacks_of(evidence), alpha, width)


def choose(
    evidence: Evidence,
    candidates: Collection[str] = LADDER,
    stacks: Sequence[Stacked] = (),
    alpha: float = ALPHA,
    width: float = WIDTH,
) -> Selection:
    """Choose among some of the candidates that were cross-fitted, and fit the choice on all cases.

    Args:
        evidence: the cross-fitted candidates.
        candidates: those that may be chosen; the reference always may.
        stacks: mixtures of candidates, at the top of the ladder.
        alpha: level of the one-sided tests.
        width: standard errors of the rule for strengths.
    """
    if evidence.table is None:
        return _too_few(evidence)
    table = evidence.table.only(candidates).followed_by(stack.path for stack in stacks)
    found = climb(table, alpha, width)
    picks, without = climb_without_each(table, alpha, width)
    reference = table.paths[0].nll[-1]
    calibrator, certificate = _fitted(evidence, found, stacks)
    return Selection(
        pipeline=found.pipeline,
        strength=found.strength,
        calibrator=calibrator,
        reason=_reason(table, found, alpha),
        groups=len(table.groups),
        certificate=certificate,
        chosen=group_gain(found.nll - reference, table.groups, table.folds),
        procedure=group_gain(without - reference, table.groups, table.folds),
        picks=dict(Counter(picks)),
        rungs=found.rungs,
        temperatures={pooling: evidence.temperature(pooling) for pooling in poolings_of(table.names)},
        held_out=table,
    )


def _fitted(evidence: Evidence, found: Climb, stacks: Sequence[Stacked]) -> tuple[Calibrator, dict[str, Any]]:
    """The choice, fitted on all cases, and its certificate; of a stack, the weights and what is known about them."""
    for stack in stacks:
        if stack.pipeline == found.pipeline:
            return stack.calibrator, stack.certificate
    return evidence.fit(found.pipeline, found.strength)


def plain(value: Any) -> Any:  # noqa: ANN401
    """Dataclasses, arrays and infinite numbers as JSON holds them.

    Example:
        >>> plain({"strengths": (math.inf, 1.0), "nll": np.zeros(2)})
        {'strengths': ['inf', 1.0], 'nll': [0.0, 0.0]}
    """
    if hasattr(value, "__dataclass_fields__"):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _too_few(evidence: Evidence) -> Selection:
    count, manifest = len(evidence.groups), evidence.manifest
    reason = (
        f"too few groups to tell ({count}; at least {MIN_GROUPS} needed): add groups, or name a finer level of groups"
    )
    return Selection(REFERENCE, 0.0, Identity(manifest.num_classes, manifest.spatial_dims), reason, count)


def _reason(table: HeldOut, found: Climb, alpha: float) -> str:
    """The choice in words."""
    reference = table.paths[0].nll[-1]
    if found.pipeline != REFERENCE:
        gain = group_gain(found.nll - reference, table.groups, table.folds)
        return (
            f"{found.pipeline} saves {gain.gain.mean:.4f} of {reference.mean():.4f} NLL on unseen groups "
            f"({gain.gain.low:.4f} to {gain.gain.high:.4f}); {gain.share:.0%} of {gain.groups} groups gain"
        )
    best = min(found.rungs, key=lambda rung: rung.nll, default=None)
    if best is None or best.nll >= reference.mean():
        return f"no candidate is better than {REFERENCE} on unseen groups ({len(table.groups)} groups)"
    path = next(path for path in table.paths if path.pipeline == best.pipeline)
    differences = path.nll[path.strengths.index(best.strength)] - reference
    return (
        f"too few groups to tell: {np.mean(differences < 0):.0%} of {len(table.groups)} groups gain by "
        f"{best.pipeline}, {-differences.mean():.4f} NLL on average (p = {best.p_value:.2f}); about "
        f"{groups_needed(differences, table.folds, alpha)} groups would show a gain of that size"
    )
