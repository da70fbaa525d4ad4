"""The former ``calibrate.py recommend``, now part of ``show``: which pipeline to deploy."""

import json as json_format
from dataclasses import asdict
from pathlib import Path

from lightning_calib.experiment.advice import (
    GroupAdvice,
    Preserve,
    Recommendation,
    describe,
    describe_groups,
    stored_advice,
    stored_group_advice,
)
from lightning_calib.kit.checksums import refuse_changed
from lightning_calib.kit.files import plain

# What to deploy, and the number of repeats behind it (0 where groups chose).
Advice = tuple[Recommendation | GroupAdvice, int]


def recommend(
    calibration: Path,
    preserve: Preserve = "order",
    translation_invariant: bool = True,
    json: bool = False,
    trust: bool = False,
) -> int:
    """Name the pipeline to deploy under a constraint: chosen on val alone, or by groups, judged on test.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        preserve: what must stay of the pooled ranking: order, argmax (the segmentation map) or none.
        translation_invariant: take only pipelines to which shifts of the logits do not matter.
        json: print the recommendation as JSON.
        trust: import classes of other packages that the run's folder names.
    """
    advice = advised(calibration, preserve, translation_invariant, trust)
    print(json_format.dumps(plain(asdict(advice[0]), digits=10)) if json else told(advice))
    return 0


def advised(calibration: Path, preserve: Preserve, translation_invariant: bool, trust: bool = False) -> Advice:
    """What a run recommends: as its summary has it or, where that holds none, computed."""
    refuse_changed(calibration, "`calibrate.py run` makes it anew")
    selected = stored_group_advice(calibration, preserve)
    if selected is not None:
        return selected, 0
    stored = stored_advice(calibration, preserve) if translation_invariant else None
    return stored or _computed(calibration, preserve, translation_invariant, trust)


def told(advice: Advice) -> str:
    """The recommendation in a few lines."""
    found, repeats = advice
    return describe_groups(found) if isinstance(found, GroupAdvice) else describe(found, repeats)


def _computed(
    calibration: Path, preserve: Preserve, translation_invariant: bool, trust: bool
) -> tuple[Recommendation, int]:
    """What the summary does not hold; this takes torch, and seconds."""
    from lightning_calib.experiment.recommend import recommend as choose
    from lightning_calib.experiment.results import Results

    results = Results(calibration, trust)
    return choose(results, preserve, translation_invariant), len(results.repeats)
