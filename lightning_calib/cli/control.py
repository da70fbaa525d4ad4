"""``calibrate.py control``: masks whose share of missed or of false voxels is bounded, with a guarantee."""

import json as json_format
from dataclasses import asdict
from pathlib import Path

from lightning_calib.decisions.control import Method
from lightning_calib.deployment import learn
from lightning_calib.deployment.decisions import MaskRule
from lightning_calib.deployment.folder import DECISIONS
from lightning_calib.deployment.learned_masks import Judged
from lightning_calib.kit.tables import Table


def control(
    deployed: Path,
    outputs: Path,
    structure: str,
    risk: str = "missed",
    alpha: float = 0.1,
    method: Method = "crc",
    delta: float = 0.1,
    group_level: str | None = None,
    judge_by: str | None = None,
    json: bool = False,
) -> int:
    """Find masks of a structure that hold a risk, from labelled cases that the calibrator was not fitted on.

    From then on apply writes them beside the others: outer masks that miss little, inner masks that hold little else.

    Args:
        deployed: folder that calibrate.py deploy wrote, with --cases cal_val or from other cases.
        outputs: stored member outputs with labels; groups that the calibrator was fitted on are left out.
        structure: name of a class or region, or foreground for all classes but the background.
        risk: missed (share of the true voxels that an outer mask misses), false (share of an inner mask's voxels that
            are false), or the dotted path of a lightning_calib.decisions.Risk.
        alpha: bound of the risk.
        method: crc bounds the expected loss on a case of a new group; hb and wsr bound the mean loss over new groups
            with a probability of 1 - delta.
        delta: of hb and wsr.
        group_level: level of the groups that are exchangeable, such as patient, or case for each case by itself; by
            default the data set's own.
        judge_by: level of groups that are held out together to judge the mask, such as site; by default group_level.
        json: print what was found as JSON.
    """
    found = learn.control(
        deployed,
        outputs,
        structure,
        group_level,
        risk=risk,
        alpha=alpha,
        method=method,
        delta=delta,
        judge_by=judge_by,
        quiet=json,
    )
    path = deployed / DECISIONS
    if json:
        print(json_format.dumps(asdict(found) | {"decisions": str(path)}))
        return 0
    print("\n".join(told(found)))
    if judge_by is not None:
        rows = [[unit, f"{loss:.1%}", "above" if loss > alpha else ""] for unit, loss in found.by_unit.items()]
        head = (judge_by, "mean loss", f"against {alpha:g}")
        print(Table.of("units", f"each {judge_by} under a threshold from the others", head, rows).to_text())
    print(f"{path}: `calibrate.py apply` writes <case>_{found.rule.name} from now on")
    return 0


def told(found: Judged) -> list[str]:
    """What was found, as lines for a terminal."""
    rule, facts = found.rule, found.rule.facts
    surely = "in expectation" if facts["method"] == "crc" else f"with probability {1 - facts['delta']:g}"
    lines = [
        f"{rule.structure.name}, {rule.kind} mask: {facts['told']}: at most {facts['alpha']:.1%} {surely} "
        f"({facts['method']})",
        f"threshold {rule.threshold:.4g} from {facts['groups']} groups ({facts['group_level']}, {facts['cases']} "
        "cases) that the calibrator was not fitted on",
        f"groups that were held out: {found.mean.mean:.1%} [{found.mean.low:.1%}, {found.mean.high:.1%}]"
        if found.mean.mean == found.mean.mean
        else "groups that are held out leave too few to judge it",
    ]
    if facts["voxels_to_true"] is not None:
        lines.append(f"voxels of the masks over true voxels: {facts['voxels_to_true']:.2f}")
    return [*lines, *empty_warning(rule)]


def empty_warning(rule: MaskRule) -> list[str]:
    """Says so where a mask is everything or nothing."""
    if 0 < rule.threshold <= 1:
        return []
    what = "the whole image" if rule.threshold == 0 else "empty"
    return [f"warning: the mask is {what}: with so many groups, nothing tighter can be promised at this alpha"]
