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
        difference: candidate minus reference. Its interval, from cases drawn as wholes over all repeats, holds 0 where
            the verdict is "within noise" and nowhere else: it is as wide as Holm's correction asks for.
        two_level: the same difference with the paper's interval, not corrected.
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
    two_level: Interval
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
        level: level of the intervals and verdicts together: one minus the chance of a single false verdict.

    Returns:
        One comparison a key, in their order.
    """
    drawn = {
        key: clustered_bootstrap(_tables(parts), cases[key], replicates, seed)[:, 0]
        for key, parts in differences.items()
    }
    held = [np.sort(values[~np.isnan(values)]) for values in drawn.values()]
    p_values = [two_sided_p(values) for values in held]
    corrected, factors = holm(p_values), holm_factors(p_values, 1 - level)
    found = []
    for key, values, p, p_holm, factor in zip(drawn, held, p_values, corrected, factors, strict=True):
        tables, higher = _tables(differences[key]), _higher_is_better(key[3])
        estimate = point_estimate(tables)
        verdict: Verdict = "within noise"
        if p_holm < 1 - level:
            verdict = "better" if (estimate[0] > 0) == higher else "worse"
        found.append(
            Comparison(
                *key,
                difference=Interval(float(estimate[0]), *inverted_interval(values, factor, 1 - level)),
                two_level=intervals(estimate, two_level_bootstrap(tables, replicates, seed, cases[key]), level)[0],
                improvement=improvement_probability(values, higher) if len(values) else float("nan"),
                p_value=p,
                p_holm=p_holm,
                verdict=verdict,
            )
        )
    return found


def _tables(parts: Sequence[Floats]) -> list[Floats]:
    return [np.asarray(part, dtype=np.float64)[:, None] for part in parts]


def holm_factors(p_values: Sequence[float], error: float) -> list[int]:
    """By how much Holm's procedure multiplies each p-value before it compares it with the error.

    It goes up from the smallest p-value and stops at the first one that fails; those above share its factor.

    Example:
        >>> holm_factors([0.01, 0.4, 0.3], 0.05)
        [3, 2, 2]
    """
    order = np.argsort(p_values, kind="stable")
    factors = [0] * len(order)
    factor, failed = len(order), False
    for place in order:
        factors[place] = factor
        failed = failed or factor * p_values[place] >= error
        factor -= not failed
    return factors


def inverted_interval(replicates: Floats, factor: int, error: float) -> tuple[float, float]:
    """The differences that the test would not reject, from sorted replicates ``(B,)``.

    It holds 0 exactly where ``factor`` times :func:`two_sided_p` is not below the error. Where there are too few
    replicates to reject anything at all, it is stretched to 0.

    Example:
        >>> inverted_interval(np.arange(1.0, 100.0), 1, 0.05)
        (2.0, 98.0)
        >>> inverted_interval(np.arange(1.0, 100.0), 10, 0.05)
        (0.0, 99.0)
    """
    if not len(replicates):
        return float("nan"), float("nan")
    beyond = np.arange(len(replicates) // 2 + 1)  # replicates on the wrong side of 0
    outside = int((factor * (2 * (beyond + 1) / (len(replicates) + 1)) < error).sum()) - 1
    if outside < 0:
        return min(float(replicates[0]), 0.0), max(float(replicates[-1]), 0.0)
    return float(replicates[outside]), float(replicates[-1 - outside])
