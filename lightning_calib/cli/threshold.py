"""``calibrate.py threshold``: the threshold on a calibrated map that costs least."""

import json as json_format
from dataclasses import asdict
from pathlib import Path

from lightning_calib.deployment import learn
from lightning_calib.deployment.folder import DECISIONS
from lightning_calib.deployment.learned_thresholds import JudgedThreshold
from lightning_calib.kit.files import plain
from lightning_calib.kit.tables import Table

FROC_POINTS = (0.125, 0.25, 0.5, 1, 2, 4, 8)  # false parts a case that the table shows


def threshold(
    deployed: Path,
    outputs: Path,
    structure: str,
    cost_fn: float | None = None,
    cost_fp: float | None = None,
    dice: bool = False,
    false_per_case: float | None = None,
    group_level: str | None = None,
    json: bool = False,
) -> int:
    """Choose a threshold for a structure on the cases of the fit, and judge it on unseen groups.

    From then on apply writes the mask of the threshold beside the others.

    Args:
        deployed: folder that calibrate.py deploy wrote with --cases cal_val.
        outputs: stored member outputs of the run, with labels.
        structure: name of a class or region, or foreground for all classes but the background.
        cost_fn: price of a missed voxel; the threshold of least cost is chosen.
        cost_fp: price of a false voxel.
        dice: choose the threshold with the best mean Dice.
        false_per_case: choose the threshold that finds most lesions (connected parts of the truth) with at most so many
            false parts a case on average.
        group_level: level of groups that are judged as wholes; by default the data set's own.
        json: print what was found as JSON.
    """
    found = learn.threshold(
        deployed, outputs, structure, cost_fn, cost_fp, dice, false_per_case, group_level, quiet=json
    )
    path = deployed / DECISIONS
    if json:
        print(json_format.dumps(plain(asdict(found) | {"decisions": str(path)})))
        return 0
    print(table(found))
    if "froc" in found.rule.facts:
        print(froc_table(found.rule.facts["froc"]))
    print(f"{path}: `calibrate.py apply` writes <case>_{found.rule.name} from now on")
    return 0


def table(found: JudgedThreshold) -> str:
    """How the threshold does, for a terminal."""
    facts, digits = found.rule.facts, 4 if found.rule.facts["rule"] != "least cost" else 1
    rows = [[name, *(f"{x:.{digits}f}" for x in (own.mean, own.low, own.high))] for name, own in found.figures.items()]
    what = {"least cost": "cost a case", "best Dice": "mean Dice"}.get(facts["rule"], "detections")
    caption = (
        f"{facts['rule']} of {found.rule.structure.name}: threshold {found.rule.threshold:.4g}, chosen on "
        f"{facts['chosen_on']} cases of the fit, judged on {facts['judged_on']} unseen ones"
    )
    return Table.of("threshold", caption, (what, "mean", "low", "high"), rows).to_text()


def froc_table(curve: list[dict[str, float]]) -> str:
    """The detection curve at some numbers of false parts: the best share that does not exceed them."""
    rows = []
    for most in FROC_POINTS:
        within = [point["found"] for point in curve if point["false_per_case"] <= most]
        rows.append([f"{most:g}", f"{max(within):.1%}" if within else "-"])
    return Table.of("froc", "detection curve on unseen cases", ("false parts a case", "lesions found"), rows).to_text()
