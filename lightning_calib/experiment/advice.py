"""The recommendation of an experiment, as it was stored and as people read it; nothing here needs torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning_calib.experiment.statistics import Interval
from lightning_calib.kit.files import read_json

Preserve = Literal["order", "argmax", "none"]


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

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "Recommendation":
        """Read it from its JSON form."""
        test = {key: Interval(**value) for key, value in facts["test"].items()}
        return cls(**{**facts, "test": test, "regret": Interval(**facts["regret"])})


def stored_advice(calibration: Path, preserve: Preserve) -> tuple[Recommendation, int] | None:
    """What ``summary.json`` recommends among translation-invariant pipelines, and the number of repeats behind it.

    None where there is no summary, or none that this version wrote: computing it then says what is wrong.
    """
    path = calibration / "summary.json"
    if not path.is_file():
        return None
    try:
        summary = read_json(path)
        return Recommendation.from_dict(summary["recommendation"][preserve]), int(summary["repeats"])
    except (ValueError, KeyError, TypeError):
        return None


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
    plain = f"identity({pipeline.rpartition('(')[2]}"
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
