"""NLL, BA-ECE and processor seconds of pipelines on stored outputs: fitted on some groups, judged on others.

python benchmarks/real_fits.py --outputs '[runs/hippocampus/outputs,runs/massroads_crops/outputs]' \
    [--pipelines "ts(p),gs(p),cms_op(p),lts_ti(p)"] [--reference "lts_ti(p)"] [--cal .4] [--val .1]

Each pipeline is fitted with the defaults of its solver, on one thread; by Adam with several learning rates, of which
the best on ``val`` counts, with the seconds of that one fit. Groups of the store stay whole. Pooled maps and distances
are made beforehand and kept beside the store.
"""

import time
from pathlib import Path
from typing import NamedTuple

import torch
from _measure import markdown
from jsonargparse import auto_cli

from lightning_calib.calibrators import Calibrator, LinearCalibrator, PipelineName
from lightning_calib.experiment.fitting import fresh
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import AdamSolver, make_solver
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
    """Fit a pipeline on ``cal``."""
    data.pooling = name.pooling
    calibrator = fresh(name, data, seed)
    if not list(calibrator.parameters()):
        return Fit(calibrator, 0.0, 0)
    if calibrator.solver != "adam":
        return one_fit(calibrator, data)
    fits = [one_fit(fresh(name, data, seed), data, lr=rate) for rate in rates]
    return min(fits, key=lambda fit: fit.val_nll)


def one_fit(calibrator: Calibrator, data: StoredOutputsDataModule, **options: float) -> Fit:
    """One fit by the solver that suits the calibrator; Adam stops by ``val``."""
    begin = time.process_time()
    walk = KeptWalk(calibrator, data.ignore_index) if isinstance(calibrator, LinearCalibrator) else None
    solver = make_solver(calibrator, ignore_index=data.ignore_index, walk=walk, **options)
    data.train_batches = solver.batches
    cal = data.batches("cal") if solver.batches == "cases" else data.train_dataloader()
    cpu = torch.device("cpu")
    solver.solve(DeviceBatches(cal, cpu, walk), DeviceBatches(data.batches("val"), cpu))
    val_nll = solver.best_nll if isinstance(solver, AdamSolver) else 0.0
    return Fit(calibrator, time.process_time() - begin, solver.passes, val_nll)


def judged(name: PipelineName, calibrator: Calibrator, data: StoredOutputsDataModule) -> dict[str, float]:
    """Scores on ``test``, means over cases."""
    data.pooling = name.pooling
    task = EvaluationTask({str(name): calibrator}, data.ignore_index, data.background, SCORES)
    with torch.no_grad():
        for number, batch in enumerate(data.test_dataloader()):
            task.test_step(batch, number)
    task.conclude()
    return task.evaluated[str(name)].figures()


def warm_up(data: StoredOutputsDataModule, names: list[PipelineName]) -> None:
    """Make pooled maps and distances, so that no fit pays for them."""
    for pooling in dict.fromkeys(name.pooling for name in names):
        data.pooling = pooling
        for case_id in data.store.case_ids:
            data.cases.pooled(case_id)
    for case_id in data.ids("test"):
        data.distance(case_id)


def main(
    outputs: list[Path],
    pipelines: str = "identity(p),ts(p),gs(p),cms_op(p),lts_ti(p)",
    reference: str = "lts_ti(p)",
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
        reference: what NLL and seconds are compared with; it is fitted, too.
        cal: share of the cases to fit on.
        val: share of the cases by which early stopping goes.
        test: share of the cases to judge on; by default the rest.
        rates: learning rates of Adam to choose from.
        seed: seed of the division and of what solvers draw.
    """
    torch.set_num_threads(1)
    names = [PipelineName.parse(text) for text in dict.fromkeys([*pipelines.split(","), reference])]
    for folder in outputs:
        data = StoredOutputsDataModule(folder, cal=cal, val=val, test=test, seed=seed, group_aware=True)
        warm_up(data, names)
        fits, figures = {}, {}
        for name in names:
            fits[str(name)] = fitted(name, data, seed, rates)
            figures[str(name)] = judged(name, fits[str(name)].calibrator, data)
            print(f"{name}: {figures[str(name)]['nll']:.5f}, {fits[str(name)].seconds:.1f} s", flush=True)
        sizes = ", ".join(f"{part} {len(data.ids(part))}" for part in ("cal", "val", "test"))
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
