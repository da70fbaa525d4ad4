"""Expected Dice of a mask: the closed ratio of expectations against labels drawn voxel by voxel.

    python benchmarks/expected_dice.py --deployed runs/hippocampus/deployed --outputs runs/hippocampus/outputs

On the cases that the calibrator was not fitted on, for every structure: how far the two are apart, how far each is from
the true Dice, how well each ranks the cases, and how long it takes.
"""

import time
from pathlib import Path

import numpy as np
import torch
from jsonargparse import auto_cli

from lightning_calib.decisions.quality import structure_facts, true_dice
from lightning_calib.decisions.review import spearman
from lightning_calib.deployment.labelled import Labelled
from lightning_calib.deployment.structures import single_structures
from lightning_calib.kit.tables import Table


def sampled_dice(probs: torch.Tensor, mask: torch.Tensor, draws: int, generator: torch.Generator) -> float:
    """Mean Dice of a mask ``(n,)`` and labels drawn from probabilities ``(n,)``, voxel by voxel."""
    scores = []
    for _ in range(draws):
        truth = torch.rand(probs.shape, generator=generator) < probs
        scores.append(2 * float((truth & mask).sum()) / max(float(truth.sum() + mask.sum()), 1.0))
    return float(np.mean(scores))


def main(deployed: Path, outputs: Path, draws: int = 100, group_level: str | None = None) -> None:
    """Compare the two on every structure.

    Args:
        deployed: folder that calibrate.py deploy wrote with --cases cal_val.
        outputs: stored outputs of the run.
        draws: labels drawn for each structure of a case.
        group_level: level of the groups that are kept apart.
    """
    labelled, structures = Labelled(deployed, outputs, group_level), single_structures(deployed)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in structures}
    seconds, generator = np.zeros(2), torch.Generator().manual_seed(0)
    for case in labelled.each(labelled.unseen, quiet=True):
        for name, region in structures.items():
            mask, truth = region.target(case.maps.mask, None).bool(), case.truth(region)
            if not (mask & case.counted).any():
                continue
            probs = case.maps.probs_of(region)
            start = time.perf_counter()
            closed = structure_facts(probs, mask, case.counted).expected_dice
            middle = time.perf_counter()
            sampled = sampled_dice(probs[case.counted], mask[case.counted], draws, generator)
            seconds += middle - start, time.perf_counter() - middle
            found[name].append((closed, sampled, true_dice(mask, truth, case.counted)))
    rows = []
    for name, values in found.items():
        closed, sampled, true = np.array(values).T
        cells = (np.abs(closed - sampled).max(), np.abs(closed - true).mean(), np.abs(sampled - true).mean())
        ranks = (spearman(closed, true), spearman(sampled, true))
        rows.append([name, str(len(true)), *(f"{x:.4f}" for x in cells), *(f"{x:.3f}" for x in ranks)])
    head = ("structure", "cases", "largest difference", "error, closed", "error, drawn", "rank, closed", "rank, drawn")
    count = max(sum(map(len, found.values())), 1)
    each = [1000 * x / count for x in seconds]
    told = f"{draws} draws; {each[0]:.1f} ms a structure closed (all facts), {each[1]:.1f} ms drawn"
    print(Table.of("expected", told, head, rows).to_text())


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
