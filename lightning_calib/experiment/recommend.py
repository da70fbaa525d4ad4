"""Which pipeline to deploy: chosen on `val` alone, judged on `test`."""

from collections import Counter

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.advice import Preserve, Recommendation
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import (
    PAIRED_REPLICATES,
    Floats,
    Interval,
    clustered_bootstrap,
    intervals,
    point_estimate,
)

_KEPT = {"order": ("order",), "argmax": ("order", "argmax"), "none": ("order", "argmax", None)}
NEGLIGIBLE = 1e-4  # difference in NLL that nobody would act upon, however certain it is
_SCORES = ("nll", "dice", "ece", "ba_ece", "flip")


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
