"""The recommendation of an experiment, as it was stored and as people read it; nothing here needs torch."""

import html
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_calib.experiment.statistics import Interval
from lightning_calib.kit.files import read_json

Preserve = Literal["order", "argmax", "none"]

# Scores that are told in a few lines: key, name, and 100 for those in percent.
TOLD = (("nll", "NLL", 1), ("ece", "ECE", 1), ("ba_ece", "BA-ECE", 1), ("dice", "Dice", 100), ("flip", "flips", 100))


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

    def _repr_html_(self) -> str:
        return as_html(describe(self, len(self.chosen)))


@dataclass(frozen=True)
class GroupAdvice:
    """What selection by groups deploys under a constraint, and what the procedure gained on test cases.

    Each repeat made its own choice on ``cal`` and ``val``, and that choice was judged on its ``test``.

    Attributes:
        preserve: what the pipeline must keep of the pooled ranking.
        pipeline: the choice on all cases.
        strength: of its ridge.
        reason: why, in a sentence.
        level: level of the groups.
        groups: groups that the choice rests on.
        chosen: the choice of each repeat.
        reasons: why.
        gain: test NLL that the procedure saves against ``identity(p)``, interval clustered by group; None where no
            repeat has a selection.
        share: share of the test groups that gain; ties count half.
        worst_group: the test group that gains least.
        worst_gain: its gain, negative where it loses.
        loss_probability: probability that a new group loses; None with a single test group.
        unseen: whether the selections had seen none of the test groups.
        by_group: gain of each test group.
        scores: each test score ``before`` and ``after`` calibration, and its ``change``.
    """

    preserve: Preserve
    pipeline: str
    strength: float
    reason: str
    level: str
    groups: int
    chosen: list[str]
    reasons: list[str]
    gain: Interval | None = None
    share: float | None = None
    worst_group: str | None = None
    worst_gain: float | None = None
    loss_probability: float | None = None
    unseen: bool = True
    by_group: dict[str, float] = field(default_factory=dict)
    scores: dict[str, dict[str, Interval]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "GroupAdvice":
        """Read it from its JSON form."""
        scores = {
            key: {name: Interval(**each) for name, each in parts.items()} for key, parts in facts["scores"].items()
        }
        gain = None if facts["gain"] is None else Interval(**facts["gain"])
        return cls(**{**facts, "scores": scores, "gain": gain})

    def _repr_html_(self) -> str:
        return as_html(describe_groups(self))


def selected_advice(summary: dict[str, Any], preserve: Preserve) -> GroupAdvice | None:
    """What a summary says about selection by groups; None where the run selected otherwise.

    Raises:
        ValueError: where the selection failed.
    """
    found = summary.get("selection")
    if found is None:
        return None
    if found[preserve] is None:
        raise ValueError(
            "the selection by groups on all cases is missing or failed, so that nothing can be recommended: run "
            "`calibrate.py run` again, or name a pipeline yourself"
        )
    return GroupAdvice.from_dict(found[preserve])


def stored_group_advice(calibration: Path, preserve: Preserve) -> GroupAdvice | None:
    """What ``summary.json`` says about selection by groups; None where there is no summary, or it has none."""
    path = calibration / "summary.json"
    return selected_advice(read_json(path), preserve) if path.is_file() else None


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


def describe_groups(advice: GroupAdvice) -> str:
    """What selection by groups advises, in a few lines."""
    a = advice
    lines = [f"{verdict(a)}."]
    if a.pipeline != "identity(p)":
        lines.append(f"Chosen on all cases, by {a.groups} groups ({a.level}): {a.reason}.")
    if a.chosen:
        votes = ", ".join(f"{name} ({count})" for name, count in Counter(a.chosen).most_common())
        lines.append(f"Chosen in the repeats: {votes}.")
    if told := [f"{label} {_told(a.scores[key], scale)}" for key, label, scale in TOLD if key in a.scores]:
        lines.append(f"On test, from the ensemble as it is: {', '.join(told)}.")
    return "\n".join(lines)


def as_html(advice: str) -> str:
    r"""Advice as a notebook shows it: the verdict stands out.

    Example:
        >>> as_html("Deploy ts(p).\nNLL < 1")
        '<p><b>Deploy ts(p).</b><br>NLL &lt; 1</p>'
    """
    first, *others = html.escape(advice).splitlines()
    return f"<p>{'<br>'.join([f'<b>{first}</b>', *others])}</p>"


def verdict(advice: GroupAdvice) -> str:
    """What to do, and what doing so gained on test groups."""
    a = advice
    if a.pipeline == "identity(p)":
        return f"Leave the ensemble as it is: {a.reason}"
    if a.gain is None:
        return f"Deploy {a.pipeline}: no repeat has judged the selection"
    if set(a.chosen) == {"identity(p)"}:
        return (
            f"Deploy {a.pipeline}: chosen on all cases together. The repeats, each with fewer groups, left the "
            "ensemble as it is, so that no test case has judged this choice"
        )
    where = "on groups that it had not seen" if a.unseen else "on test cases"
    gaining = sum(gain > 0 for gain in a.by_group.values())
    verb, sign = ("saves", 1) if a.gain.mean >= 0 else ("LOSES", -1)
    low, high = sorted((sign * a.gain.low, sign * a.gain.high))
    told = [
        f"Deploy {a.pipeline}: {where} the selection {verb} {abs(a.gain.mean):.4f} NLL [{low:.4f}, {high:.4f}]",
        f"{gaining} of {len(a.by_group)} groups gain",
        f"the worst, {a.worst_group}, by {a.worst_gain:.4f}",
    ]
    if a.loss_probability is not None:
        risk = "below 1 %" if a.loss_probability < 0.01 else f"{100 * a.loss_probability:.0f} %"
        told.append(f"probability that a new group loses: {risk}")
    return "; ".join(told)


def _told(parts: dict[str, Interval], scale: int) -> str:
    """A score before and after; in percent where it is scaled."""
    digits, unit = (4, "") if scale == 1 else (2, " %")
    before, after = (scale * parts[key].mean for key in ("before", "after"))
    return f"{before:.{digits}f} to {after:.{digits}f}{unit}"
