"""The ladder: a richer pipeline replaces a simpler one only where groups agree that it is better.

Pure functions on the table of held-out NLL, as cross-fitting makes it. The idea of accepting a richer model only after
a test is that of Vergouwe et al. (2017, "A closed testing procedure to select an appropriate method for updating
prediction models").
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from lightning_calib.calibrators import PipelineName, build
from lightning_calib.experiment.selection.statistics import one_sided_p, strongest_within
from lightning_calib.experiment.statistics import Floats

REFERENCE = "identity(p)"
LADDER = (
    *(REFERENCE, "identity(z)", "ts(p)", "ts(z)"),
    *("case_ts_pooled(p)", "case_ts_pooled(z)", "case_ts(p)", "case_ts(z)"),
    *("fts_pooled(p)", "fts_pooled(z)", "fts(p)", "fts(z)", "gs(p)", "gs(z)"),
    *("cms_op(p)", "cms_op(z)", "cms_ap(p)", "cms_ap(z)"),
    *("dc(p)", "dc(z)", "cdc(p)", "cdc(z)"),
)
ALPHA = 0.1  # nominal: with its correction the test takes a fit that is worth nothing in 3 of 100 draws at most
WIDTH = 1.0  # standard errors of the rule for strengths

# Parameters are counted for at least so many classes: with two, a matrix of gaps is a number, and all counts are alike.
LEAST_CLASSES = 10

_KEEPS = ("order", "argmax", None)
_POOLINGS = ("p", "z", "p0")


@dataclass(frozen=True)
class HeldOutPath:
    """Held-out NLL of a pipeline along its path of strengths.

    Attributes:
        pipeline: its name.
        strengths: of the ridge, falling; the first is infinite where there is a path.
        nll: mean over the cases of each group ``(S, G)``.
        hedges: whether it mixes candidates: it then needs a lead of a standard error over what is in hand, no test.
    """

    pipeline: str
    strengths: tuple[float, ...]
    nll: Floats
    hedges: bool = False


@dataclass(frozen=True)
class HeldOut:
    """The table that selection rests on.

    Attributes:
        groups: names of the groups.
        folds: in how many parts they were left out.
        paths: one a candidate, in the order of the ladder, the reference first.
    """

    groups: tuple[str, ...]
    folds: int
    paths: tuple[HeldOutPath, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Pipelines of the candidates."""
        return tuple(path.pipeline for path in self.paths)

    def only(self, candidates: Collection[str]) -> "HeldOut":
        """The table of some candidates, and of the reference."""
        reference, *others = self.paths
        kept = [path for path in others if path.pipeline in candidates]
        return HeldOut(self.groups, self.folds, (reference, *kept))

    def followed_by(self, paths: Iterable[HeldOutPath]) -> "HeldOut":
        """The table with further candidates at the top of the ladder."""
        return HeldOut(self.groups, self.folds, (*self.paths, *paths))

    def without(self, group: int) -> "HeldOut":
        """The table as if a group had not been there."""
        names = self.groups[:group] + self.groups[group + 1 :]
        paths = [replace(path, nll=np.delete(path.nll, group, axis=1)) for path in self.paths]
        return HeldOut(names, min(self.folds, len(names)), tuple(paths))


@dataclass(frozen=True)
class Rung:
    """What became of a candidate.

    Attributes:
        pipeline: the candidate.
        strength: of its ridge, by the one-standard-error rule; infinite where it is no more than a simpler candidate.
        nll: its held-out NLL, mean over groups.
        versus: the pipeline that it would have replaced.
        difference: mean over groups of its NLL minus that one's.
        p_value: of "no better than that one", one-sided.
        p_gain: of "no better than the reference", one-sided.
        accepted: whether it replaced it.
    """

    pipeline: str
    strength: float
    nll: float
    versus: str
    difference: float
    p_value: float
    p_gain: float
    accepted: bool


@dataclass(frozen=True)
class Climb:
    """The way up the ladder.

    Attributes:
        pipeline: where it ended.
        strength: of the ridge there.
        nll: held-out NLL of each group there ``(G,)``.
        rungs: all candidates but the reference, in order.
    """

    pipeline: str
    strength: float
    nll: Floats
    rungs: tuple[Rung, ...]


def ladder_order(candidates: Iterable[str], num_classes: int) -> tuple[str, ...]:
    """Candidates from the simplest on: first by what they keep, then by their number of parameters, then by pooling.

    Example:
        >>> ladder_order(["cdc(p)", "dc(z)", "cms_op(p)", "gs(p)", "ts(z)", "ts(p)", "identity(p)"], num_classes=3)
        ('identity(p)', 'ts(p)', 'ts(z)', 'gs(p)', 'cms_op(p)', 'dc(z)', 'cdc(p)')
    """

    def rank(text: str) -> tuple[int, int, int]:
        name = PipelineName.parse(text)
        size = build(name.calibrator, max(num_classes, LEAST_CLASSES)).num_optimized
        return _KEEPS.index(name.preserves), size, _POOLINGS.index(name.pooling)

    return tuple(sorted(dict.fromkeys(candidates), key=rank))


def climb(held_out: HeldOut, alpha: float = ALPHA, width: float = WIDTH) -> Climb:
    """Go up the ladder: nothing is accepted that does not pass the test against the reference.

    Args:
        held_out: the table.
        alpha: level of the tests.
        width: standard errors of the rule for strengths, and of the lead that a hedge needs, once it passes the test
            against the reference.
    """
    reference = held_out.paths[0]
    now, strength, nll = reference.pipeline, reference.strengths[-1], reference.nll[-1]
    rungs = []
    for path in held_out.paths[1:]:
        place = strongest_within(path.nll, width)
        found, own = path.nll[place], math.isfinite(path.strengths[place])
        p_value, p_gain = (
            one_sided_p(found - other, held_out.folds) if own else 1.0 for other in (nll, reference.nll[-1])
        )
        better = _leads(found - nll, width) if path.hedges else p_value < alpha
        accepted = p_gain < alpha and (now == reference.pipeline or better)
        difference = float(np.mean(found - nll))
        rungs.append(
            Rung(path.pipeline, path.strengths[place], float(found.mean()), now, difference, p_value, p_gain, accepted)
        )
        if accepted:
            now, strength, nll = path.pipeline, path.strengths[place], found
    return Climb(now, strength, nll, tuple(rungs))


def _leads(differences: Floats, width: float) -> bool:
    """Whether differences ``(G,)`` to what is in hand are on average more than some standard errors below 0."""
    error = differences.std(ddof=1) / math.sqrt(len(differences))
    return float(differences.mean()) < -width * float(error)


def climb_without_each(held_out: HeldOut, alpha: float = ALPHA, width: float = WIDTH) -> tuple[list[str], Floats]:
    """What the procedure would have chosen without each group, and the NLL ``(G,)`` of that choice on it.

    The choice then does not profit from having been made on the group that judges it.
    """
    picks, scores = [], []
    for group in range(len(held_out.groups)):
        found = climb(held_out.without(group), alpha, width)
        path = next(path for path in held_out.paths if path.pipeline == found.pipeline)
        picks.append(found.pipeline)
        scores.append(path.nll[path.strengths.index(found.strength), group])
    return picks, np.array(scores)
