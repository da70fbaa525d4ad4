"""NLL, BA-ECE and processor seconds of pipelines on stored outputs: fitted on some groups, judged on others.

python benchmarks/real_fits.py --outputs '[runs/hippocampus/outputs,runs/massroads_crops/outputs]' \
    [--pipelines "ts(p),gs(p),cms_op(p),lts_ti(p)"] [--adam "lts_ti(p)"] [--cal .4] [--val .1]

Each pipeline is fitted with the defaults of its solver, on one thread; one of them also by Adam with several learning
rates, of which the best on ``val`` counts, with the seconds of that one fit: with it all are compared. Groups of the
store stay whole. Pooled maps, features and distances are made beforehand and kept beside the store; what they take is
told apart.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _measure import markdown
from jsonargparse import auto_cli

from lightning_calib.calibrators import Calibrator, LinearCalibrator, PipelineName
from lightning_calib.experiment.fitting import fresh
from lightning_calib.experiment.parts import kinds_of
from lightning_calib.outputs.partition import PARTS
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import EpochSolver, make_solver
from lightning_calib.solvers.stream import KeptWalk
from lightning_calib.tasks.calibration import DeviceBatches
from lightning_calib.tasks.evaluation import EvaluationTask

SCORES = ("nll", "ba_ece")
HEADER = ["pipeline", "parameters", "NLL", "against the reference", "BA-ECE", "CPU seconds", "share", "passes"]


class Fit(NamedTuple):
    """A fitted calibrator, the processor seconds of its fit, the passes that it took, and its NLL on ``val``."""

    calibrator: Calibrator
    seconds: float
    passes: int
    val_nll: float = 0.0


def fitted(name: PipelineName, data: StoredOutputsDataModule, seed: int, rates: list[float]) -> Fit:
    """Fit a pipeline on ``cal``; by Adam where there are learning rates."""
    data.pooling = name.pooling
    calibrator = fresh(name, data, seed)
    data.feature_names = calibrator.feature_names
    if not list(calibrator.parameters()):
        return Fit(calibrator, 0.0, 0)
    if not rates:
        return one_fit(calibrator, data)
    fits = [one_fit(fresh(name, data, seed), data, solver="adam", lr=rate) for rate in rates]
    return min(fits, key=lambda fit: fit.val_nll)


def one_fit(calibrator: Calibrator, data: StoredOutputsDataModule, **options: Any) -> Fit:
    """One fit; solvers that take epochs stop by ``val``."""
    begin = time.process_time()
    walk = KeptWalk(calibrator, data.ignore_index) if isinstance(calibrator, LinearCalibrator) else None
    solver = make_solver(calibrator, ignore_index=data.ignore_index, walk=walk, **options)
    data.train_batches = solver.batches
    cal = data.batches("cal") if solver.batches == "cases" else data.train_dataloader()
    cpu = torch.device("cpu")
    solver.solve(DeviceBatches(cal, cpu, walk), DeviceBatches(data.batches("val"), cpu))
    val_nll = solver.best_nll if isinstance(solver, EpochSolver) else 0.0
    return Fit(calibrator, time.process_time() - begin, solver.passes, val_nll)


def judged(name: PipelineName, calibrator: Calibrator, data: StoredOutputsDataModule) -> dict[str, float]:
    """Scores on ``test``, means over cases."""
    data.pooling = name.pooling
    task = EvaluationTask({str(name): calibrator}, data.ignore_index, data.background, SCORES)
    data.feature_names = task.feature_names
    with torch.no_grad():
        for number, batch in enumerate(data.test_dataloader()):
            task.test_step(batch, number)
    task.conclude()
    return task.evaluated[str(name)].figures()


def warm_up(data: StoredOutputsDataModule, names: list[PipelineName]) -> None:
    """Make pooled maps, features and distances, so that no fit pays for them; says what features take."""
    used = [case_id for part in PARTS for case_id in data.ids(part)]
    for kind in dict.fromkeys(kind for name in names for kind in kinds_of(name)):
        begin, waiting = time.process_time(), data.cases.cache.missing(kind, used)
        for case_id in waiting:
            data.cases.cache.make(kind, case_id)
        print(f"{kind} of {len(waiting)} cases: {time.process_time() - begin:.1f} s", flush=True)
    for case_id in data.ids("test"):
        data.distance(case_id)


def main(
    outputs: list[Path],
    pipelines: str = "identity(p),ts(p),gs(p),cms_op(p),fts(p),fts_net(p),lts_ti(p)",
    adam: str = "lts_ti(p)",
    cal: float = 0.4,
    val: float = 0.1,
    test: float | None = None,
    rates: list[float] = [1e-2, 3e-3, 1e-3],  # noqa: B006  # not changed
    seed: int = 0,
) -> None:
    """Print a table for every store.

    Args:
        outputs: folders of stores.
        pipelines: what to fit, with commas in between.
        adam: what is fitted by Adam, too; NLL and seconds of all are compared with it.
        cal: share of the cases to fit on.
        val: share of the cases by which early stopping goes.
        test: share of the cases to judge on; by default the rest.
        rates: learning rates of Adam to choose from.
        seed: seed of the division and of what solvers draw.
    """
    torch.set_num_threads(1)
    reference = f"{adam} by Adam"
    names = {text: PipelineName.parse(text) for text in pipelines.split(",")} | {reference: PipelineName.parse(adam)}
    for folder in outputs:
        data = StoredOutputsDataModule(folder, cal=cal, val=val, test=test, seed=seed, group_aware=True)
        warm_up(data, list(names.values()))
        fits, figures = {}, {}
        for text, name in names.items():
            fits[text] = fitted(name, data, seed, rates if text == reference else [])
            figures[text] = judged(name, fits[text].calibrator, data)
            print(f"{text}: {figures[text]['nll']:.5f}, {fits[text].seconds:.1f} s", flush=True)
        sizes = ", ".join(f"{part} {len(data.ids(part))}" for part in PARTS)
        best = figures[reference]["nll"], fits[reference].seconds
        rows = [row(name, fits[name], figures[name], *best) for name in fits]
        print(f"\n{folder}: {data.num_classes} classes; cases: {sizes}\n\n{markdown(HEADER, rows)}\n", flush=True)


def row(name: str, fit: Fit, figures: dict[str, float], nll: float, seconds: float) -> list[str]:
    """Cells of a pipeline."""
    change, share = figures["nll"] / nll - 1, fit.seconds / seconds
    scores = [f"{figures['nll']:.5f}", f"{change:+.2%}", f"{figures['ba_ece']:.4f}"]
    return [
        f"`{name}`",
        str(fit.calibrator.num_optimized),
        *scores,
        f"{fit.seconds:.1f}",
        f"{share:.3f}",
        str(fit.passes),
    ]


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
