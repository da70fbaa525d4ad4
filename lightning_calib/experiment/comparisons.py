"""Paired comparisons of pipelines: is a difference real, or within noise?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_calib.experiment.statistics import (
    LEVEL,
    PAIRED_REPLICATES,
    Floats,
    Interval,
    clustered_bootstrap,
    intervals,
    point_estimate,
    two_level_bootstrap,
)
from lightning_calib.metrics.score import SCORES

Verdict = Literal["better", "worse", "within noise"]

# The paper's matched pairs: what a property is compared with, and what has it.
MATCHED_PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "translation invariance": (("ms(z)", "dc(z)"), ("ms(z)", "ms_c(z)"), ("lts(z)", "lts_ti(z)")),
    "decision preservation": (
        ("cdc(p)", "cms_ap(p)"),
        ("cdc(p)", "cms_op(p)"),
        ("cdc(z)", "cms_ap(z)"),
        ("cdc(z)", "cms_op(z)"),
    ),
}


def compared() -> list[str]:
    """Keys of the scores that pipelines are compared by, case by case."""
    return [score.key for score in SCORES.values() if score.compared]


def _higher_is_better(metric: str) -> bool:
    return SCORES[metric].better == "higher"


@dataclass(frozen=True)
class Comparison:
    """A pipeline against its reference in one metric, case by case.

    Attributes:
        family: which property the pair isolates.
        reference: the pipeline without it.
        candidate: the pipeline with it.
        metric: what is compared.
        difference: candidate minus reference, with the paper's two-level interval.
        clustered: the same difference with the interval from cases drawn as wholes over all repeats.
        improvement: share of the clustered replicates in which the candidate is better; ties count half.
        p_value: two-sided p-value of no difference from the clustered replicates, whose intervals are closer to
            their nominal coverage (docs/statistics.md).
        p_holm: the same after Holm's correction over the whole table.
        verdict: the candidate is better, worse, or within noise, at the corrected level.
    """

    family: str
    reference: str
    candidate: str
    metric: str
    difference: Interval
    clustered: Interval
    improvement: float
    p_value: float
    p_holm: float
    verdict: Verdict


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's step-down adjustment, which bounds the chance of any false rejection.

    .. math:: \tilde p_{(k)} = \max_{j \le k} \min(1, (m - j + 1)\, p_{(j)})

    with the ``m`` p-values in ascending order.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    stepped = np.minimum(1.0, np.maximum.accumulate(factors * np.asarray(p_values, dtype=np.float64)[order]))
    adjusted = np.empty(len(order))
    adjusted[order] = stepped
    return [float(p) for p in adjusted]


def improvement_probability(replicates: Floats, higher_is_better: bool = False) -> float:
    """Share of the replicates ``(B,)`` of a difference on the better side of 0; ties count half.

    Example:
        >>> improvement_probability(np.array([-1.0, -2.0, 0.0, 1.0]))
        0.625
    """
    better = replicates > 0 if higher_is_better else replicates < 0
    return float(np.mean(better) + np.mean(replicates == 0) / 2)


def two_sided_p(replicates: Floats) -> float:
    """Two-sided bootstrap p-value of a mean difference of 0, from replicates ``(B,)`` of the difference.

    Twice the smaller tail beyond 0, one replicate added to each so that it is never 0 (Davison & Hinkley 1997).

    Example:
        >>> two_sided_p(np.ones(99))
        0.02
    """
    count = len(replicates) + 1
    return min(1.0, 2 * min(int((replicates <= 0).sum()) + 1, int((replicates >= 0).sum()) + 1) / count)


def compare(
    differences: Mapping[tuple[str, str, str, str], Sequence[Floats]],
    cases: Mapping[tuple[str, str, str, str], Sequence[Sequence[str]]],
    replicates: int = PAIRED_REPLICATES,
    seed: int = 0,
    level: float = LEVEL,
) -> list[Comparison]:
    """Compare pairs of pipelines over a whole table, Holm's correction included.

    Args:
        differences: by ``(family, reference, candidate, metric)`` one array a repeat of candidate minus
            reference on each test case.
        cases: by the same keys, for each repeat the names of its cases (or of what must be drawn together).
        replicates: bootstrap replicates.
        seed: seed of the draws.
        level: level of the intervals, and one minus the corrected error of the verdicts.

    Returns:
        One comparison a key, in their order.
    """
    drafts = [_draft(key, parts, cases[key], replicates, seed, level) for key, parts in differences.items()]
    corrected = holm([draft.p_value for draft in drafts])
    return [_judged(draft, p, level) for draft, p in zip(drafts, corrected, strict=True)]


def _draft(
    key: tuple[str, str, str, str],
    parts: Sequence[Floats],
    names: Sequence[Sequence[str]],
    replicates: int,
    seed: int,
    level: float,
) -> Comparison:
    tables = [np.asarray(part, dtype=np.float64)[:, None] for part in parts]
    estimate = point_estimate(tables)
    two_level = two_level_bootstrap(tables, replicates, seed, names)
    by_case = clustered_bootstrap(tables, names, replicates, seed)
    drawn = by_case[~np.isnan(by_case)]
    return Comparison(
        *key,
        difference=intervals(estimate, two_level, level)[0],
        clustered=intervals(estimate, by_case, level)[0],
        improvement=improvement_probability(drawn, _higher_is_better(key[3])) if len(drawn) else float("nan"),
        p_value=two_sided_p(drawn),
        p_holm=1.0,
        verdict="within noise",
    )


def _judged(draft: Comparison, p_holm: float, level: float) -> Comparison:
    """The comparison with its corrected p-value and the verdict that follows from it."""
    verdict: Verdict = "within noise"
    if p_holm < 1 - level:
        verdict = "better" if (draft.difference.mean > 0) == _higher_is_better(draft.metric) else "worse"
    return Comparison(**{**vars(draft), "p_holm": p_holm, "verdict": verdict})
