"""Which pipeline to deploy: chosen on `val` alone, judged on `test`."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import (
    PAIRED_REPLICATES,
    Floats,
    Interval,
    clustered_bootstrap,
    intervals,
    point_estimate,
)

Preserve = Literal["order", "argmax", "none"]
_KEPT = {"order": ("order",), "argmax": ("order", "argmax"), "none": ("order", "argmax", None)}
NEGLIGIBLE = 1e-4  # difference in NLL that nobody would act upon, however certain it is
_SCORES = ("nll", "dice", "ece", "ba_ece", "flip")


@dataclass(frozen=True)
class Recommendation:
    """The pipeline to deploy under a constraint, and how far it can be trusted.

    Attributes:
        preserve: what the pipeline must keep of the pooled ranking.
        translation_invariant: whether only translation-invariant pipelines were eligible.
        pipeline: lowest mean ``val`` NLL over the repeats.
        val_nll: that mean, by eligible pipeline, best first.
        chosen: the pipeline that each repeat's own ``val`` chooses.
        votes: number of repeats that choose :attr:`pipeline`.
        test: ``test`` scores of the recommended pipeline.
        best: the eligible pipeline with the lowest ``test`` NLL, known only in hindsight.
        regret: ``test`` NLL that choosing by ``val`` costs against :attr:`best`: in every repeat that repeat's
            own choice is judged on that repeat's test cases, so that no test case had a say.
        within_noise: eligible pipelines whose ``test`` NLL cannot be told from the recommended one's, or differs
            from it by less than 1e-4.
    """

    preserve: Preserve
    translation_invariant: bool
    pipeline: str
    val_nll: dict[str, float]
    chosen: list[str]
    votes: int
    test: dict[str, Interval]
    best: str
    regret: Interval
    within_noise: list[str]


def eligible(pipelines: tuple[str, ...], preserve: Preserve, translation_invariant: bool = True) -> list[str]:
    """Pipelines that keep what is asked for.

    Example:
        >>> eligible(("ts(z)", "cms_ap(z)", "ms(z)", "ms(p)"), "argmax")
        ['ts(z)', 'cms_ap(z)']
        >>> eligible(("ts(z)", "cms_ap(z)", "ms(z)", "ms(p)"), "none")
        ['ts(z)', 'cms_ap(z)', 'ms(p)']
    """
    names = [PipelineName.parse(text) for text in pipelines]
    return [
        str(name)
        for name in names
        if name.preserves in _KEPT[preserve] and (name.translation_invariant or not translation_invariant)
    ]


def recommend(
    results: Results,
    preserve: Preserve = "order",
    translation_invariant: bool = True,
    replicates: int = PAIRED_REPLICATES,
) -> Recommendation:
    """Choose by ``val`` NLL among the pipelines that keep what is asked for.

    Args:
        results: a finished run.
        preserve: ``order``, ``argmax`` or ``none``: what of the pooled ranking must stay.
        translation_invariant: whether shifts of the logits must not matter.
        replicates: bootstrap replicates for intervals and noise.

    Raises:
        ValueError: if no pipeline with results in all repeats is eligible.
    """
    val_nll = _validation(results, eligible(results.pipelines, preserve, translation_invariant))
    if not val_nll:
        raise ValueError(
            f"no pipeline of {results.folder} has results in all repeats and preserves {preserve!r}"
            f"{' with translation invariance' if translation_invariant else ''}; run more pipelines "
            "(--pipelines paper), or ask for less (--preserve none)"
        )
    means = {name: float(np.mean(values)) for name, values in val_nll.items()}
    ranked = sorted(means, key=lambda name: means[name])
    chosen = [min(ranked, key=lambda name: val_nll[name][r]) for r in range(len(results.repeats))]
    names = list(val_nll)
    tables = [np.stack([results.scores(name, "nll")[r] for name in names], axis=1) for r in results.repeats]
    best = names[int(np.argmin(point_estimate(tables)))]
    picks = [table[:, [names.index(pick)]] for table, pick in zip(tables, chosen, strict=True)]
    regrets = [pick - table[:, [names.index(best)]] for pick, table in zip(picks, tables, strict=True)]
    return Recommendation(
        preserve=preserve,
        translation_invariant=translation_invariant,
        pipeline=ranked[0],
        val_nll={name: means[name] for name in ranked},
        chosen=chosen,
        votes=Counter(chosen)[ranked[0]],
        test=_test_scores(results, ranked[0], replicates),
        best=best,
        regret=results.intervals(regrets, results.repeats, replicates)[0],
        within_noise=_within_noise(results, tables, names, ranked[0], replicates),
    )


def _validation(results: Results, names: list[str]) -> dict[str, list[float]]:
    """``val`` NLL of each repeat, by pipeline; those without results in every repeat are left out."""
    missing = {name for _, name in results.missing}
    fits = {name: [results.fit(r, name) for r in results.repeats] for name in names if name not in missing}
    return {name: [fit.val_nll for fit in found if fit] for name, found in fits.items()}


def _test_scores(results: Results, name: str, replicates: int) -> dict[str, Interval]:
    scores = {metric: results.scores(name, metric) for metric in _SCORES}
    tables = [np.stack([scores[metric][r] for metric in _SCORES], axis=1) for r in results.repeats]
    return dict(zip(_SCORES, results.intervals(tables, results.repeats, replicates), strict=True))


def _within_noise(results: Results, tables: list[Floats], names: list[str], pick: str, replicates: int) -> list[str]:
    """Pipelines whose NLL difference to the pick is negligible, or has a clustered interval that holds 0."""
    differences = [table - table[:, [names.index(pick)]] for table in tables]
    clusters = [results.clusters(r) for r in results.repeats]
    found = intervals(point_estimate(differences), clustered_bootstrap(differences, clusters, replicates))
    vague = [abs(d.mean) < NEGLIGIBLE or d.low <= 0 <= d.high for d in found]
    return [name for name, within in zip(names, vague, strict=True) if within and name != pick]


def doubt(pipeline: str, best: str, within_noise: list[str]) -> str | None:
    """A warning where ``test`` shows no gain over the uncalibrated ensemble with the same pooling; None where it does.

    Args:
        pipeline: the recommended one.
        best: the one with the lowest ``test`` NLL.
        within_noise: those that cannot be told from the recommended one.

    Example:
        >>> doubt("ts(p)", "ts(p)", ["ets(p)", "identity(p)"])
        'On test it has no lower NLL than identity(p) beyond noise: leaving the ensemble as it is may be as good.'
        >>> doubt("ts(p)", "ts(p)", ["ets(p)"]) is None
        True
    """
    name = PipelineName.parse(pipeline)
    plain = f"identity({name.pooling})"
    if pipeline == plain or plain not in (best, *within_noise):
        return None
    return f"On test it has no lower NLL than {plain} beyond noise: leaving the ensemble as it is may be as good."


def describe(recommendation: Recommendation, repeats: int) -> str:
    """The recommendation in a few lines."""
    r = recommendation
    nll = r.test["nll"]
    kept = {"order": "the order of classes", "argmax": "the segmentation map", "none": "nothing"}[r.preserve]
    lines = [
        f"Deploy {r.pipeline}: lowest val NLL ({r.val_nll[r.pipeline]:.4f}) of {len(r.val_nll)} pipelines that keep "
        f"{kept}; the choice of {r.votes} of {repeats} repeats.",
        f"On test: NLL {nll.mean:.4f} [{nll.low:.4f}, {nll.high:.4f}], ECE {r.test['ece'].mean:.4f}, "
        f"BA-ECE {r.test['ba_ece'].mean:.4f}, Dice {100 * r.test['dice'].mean:.1f} %, "
        f"flips {100 * r.test['flip'].mean:.2f} %.",
        f"Best in hindsight: {r.best}; choosing by val cost {r.regret.mean:.4f} NLL "
        f"[{r.regret.low:.4f}, {r.regret.high:.4f}].",
    ]
    if r.within_noise:
        lines.append(f"Within noise of it: {', '.join(r.within_noise)}.")
    if warning := doubt(r.pipeline, r.best, r.within_noise):
        lines.append(warning)
    return "\n".join(lines)
