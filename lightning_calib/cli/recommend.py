"""``calibrate.py recommend``: which pipeline to deploy."""

import json as json_format
from dataclasses import asdict
from pathlib import Path

from lightning_calib.experiment.recommend import Preserve, describe
from lightning_calib.experiment.recommend import recommend as choose
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import plain


def recommend(
    calibration: Path, preserve: Preserve = "order", translation_invariant: bool = True, json: bool = False
) -> int:
    """Name the pipeline to deploy under a constraint: chosen on val alone, judged on test.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        preserve: what must stay of the pooled ranking: order, argmax (the segmentation map) or none.
        translation_invariant: take only pipelines to which shifts of the logits do not matter.
        json: print the recommendation as JSON.
    """
    results = Results(calibration)
    found = choose(results, preserve, translation_invariant)
    if json:
        print(json_format.dumps(plain(asdict(found), digits=10)))
    else:
        print(describe(found, len(results.repeats)))
    return 0
