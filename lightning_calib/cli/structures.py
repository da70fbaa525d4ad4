"""``calibrate.py structures``: volumes with intervals, and the expected quality of masks."""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lightning_calib.decisions.volumes import LEVEL, Scale
from lightning_calib.deployment import learn
from lightning_calib.deployment.folder import DECISIONS
from lightning_calib.deployment.learned_structures import JudgedQuality, JudgedVolume
from lightning_calib.experiment.statistics import Interval
from lightning_calib.kit.files import plain
from lightning_calib.kit.tables import Table


def structures(
    deployed: Path,
    outputs: Path,
    level: float = LEVEL,
    scale: Scale = "volume",
    group_level: str | None = None,
    json: bool = False,
) -> int:
    """Learn intervals of volumes and the quality of masks, from labelled cases that the calibrator was not fitted on.

    From then on apply adds both to its structures.csv.

    Args:
        deployed: folder that calibrate.py deploy wrote, with --cases cal_val or from other cases.
        outputs: stored member outputs with labels; groups that the calibrator was fitted on are left out.
        level: probability that the volume of a structure in a case of a new group lies in its interval.
        scale: what intervals are proportional to: volume, spread (the standard deviation of independent voxels), or
            constant.
        group_level: level of the groups that are exchangeable, such as patient, or case for each case by itself; by
            default the data set's own.
        json: print what was found as JSON.
    """
    found, path = learn.structures(deployed, outputs, level, scale, group_level, quiet=json), deployed / DECISIONS
    if json:
        print(json_format.dumps(plain(asdict(found) | {"decisions": str(path)})))
        return 0
    print(table(found.volumes, level))
    print(told(found.quality))
    print(f"{path}: `calibrate.py apply` writes both to structures.csv from now on")
    return 0


def table(volumes: Sequence[JudgedVolume], level: float) -> str:
    """Volumes, for a terminal."""
    head = ("structure", "mean voxels", "mask, excess", "expected, excess", "half width", "coverage")
    rows = [
        [v.structure, f"{v.volume:.0f}", _share(v.mask_bias), _share(v.bias), f"{v.width:.1%}", _share(v.coverage)]
        for v in volumes
    ]
    told = f"in shares of the mean true volume; intervals of {level:.0%} by {volumes[0].model.groups} groups, of which"
    return Table.of("volumes", f"{told} each was judged by the others", head, rows).to_text()


def _share(found: Interval) -> str:
    return f"{found.mean:.1%} [{found.low:.1%}, {found.high:.1%}]"


def told(quality: JudgedQuality | None) -> str:
    """The predicted Dice, for a terminal."""
    if quality is None:
        return "too few structures with a mask and a known Dice to learn its prediction: apply writes the expected one"
    weights = ", ".join(
        f"{w:.2f} {name}" for name, w in zip(quality.model.features, quality.model.weights, strict=True)
    )
    return (
        f"predicted Dice: {quality.model.intercept:.2f} + {weights}\n"
        f"held-out groups: off by {quality.error:.3f} on average ({quality.bias:+.3f}); rank correlation with the true "
        f"Dice {quality.rank:.2f} (expected Dice alone: {quality.rank_expected:.2f})"
    )
