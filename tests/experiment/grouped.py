"""Runs that select by groups, on stores with a known truth."""

from pathlib import Path

import torch

from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.results import Results
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter

SHAPE, CLASSES = (12, 12), ["rest", "disc", "rod"]


def write_groups(folder: Path, temperatures: list[float], cases: int = 2, torn: bool = False) -> OutputStore:
    """A store of two members whose logits are too large by a factor of their own in each group.

    Groups are sites; where they are ``torn``, divisions keep nothing whole but patients, of one case each.
    """
    sites = {f"g{g:02d}-{case}": f"g{g:02d}" for g in range(len(temperatures)) for case in range(cases)}
    groups = {case_id: (site, case_id) if torn else (site,) for case_id, site in sites.items()}
    levels = ("site", "patient") if torn else ("site",)
    how = {"background": 0, "groups": groups, "group_levels": levels, "group_level": levels[-1]}
    writer = OutputWriter(folder, "toy", CLASSES, 2, [Member("0"), Member("1")], **how)
    for number, case_id in enumerate(groups):
        generator = torch.Generator().manual_seed(number)
        truth = 2 * torch.randn(3, *SHAPE, generator=generator)
        noise = -torch.empty(truth.shape).exponential_(generator=generator).log()
        logits = temperatures[number // cases] * truth
        own = 0.05 * torch.randn(2, *truth.shape, generator=generator)
        writer.write(case_id, logits[None] + own, (truth + noise).argmax(0))
    writer.finish()
    return OutputStore(folder)


def grouped_experiment(outputs: Path, folder: Path | None = None, **changes) -> Experiment:
    """One repeat of three pipelines."""
    settings = {"pipelines": ["identity(p)", "ts(p)", "vs(p)"], "repeats": 1, "trials": 1, "cal": 0.4, "val": 0.25}
    return Experiment(outputs, selection="groups", calibration=folder, **(settings | changes))


def run_grouped(outputs: Path, folder: Path, workers: int = 0, **changes) -> Results:
    """Run it without a word."""
    return grouped_experiment(outputs, folder, **changes).run(workers=workers, display=False, logger=None)
