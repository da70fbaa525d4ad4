"""``calibrate.py recommend``: which pipeline to deploy."""

import json as json_format
from dataclasses import asdict
from pathlib import Path

from lightning_calib.experiment.advice import (
    Preserve,
    Recommendation,
    describe,
    describe_groups,
    stored_advice,
    stored_group_advice,
)
from lightning_calib.kit.checksums import refuse_changed
from lightning_calib.kit.files import plain


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
    refuse_changed(calibration, "`calibrate.py run` makes it anew")
    selected = stored_group_advice(calibration, preserve)
    if selected is not None:
        print(json_format.dumps(plain(asdict(selected), digits=10)) if json else describe_groups(selected))
        return 0
    stored = stored_advice(calibration, preserve) if translation_invariant else None
    found, repeats = stored or _computed(calibration, preserve, translation_invariant, trust)
    print(json_format.dumps(plain(asdict(found), digits=10)) if json else describe(found, repeats))
    return 0


def _computed(
    calibration: Path, preserve: Preserve, translation_invariant: bool, trust: bool
) -> tuple[Recommendation, int]:
    """What the summary does not hold; this takes torch, and seconds."""
    from lightning_calib.experiment.recommend import recommend as choose
    from lightning_calib.experiment.results import Results

    results = Results(calibration, trust)
    return choose(results, preserve, translation_invariant), len(results.repeats)
