"""NLL of val against processor seconds: local temperature scaling by L-BFGS on samples and by Adam.

python benchmarks/local_fits.py --outputs '[runs/hippocampus/outputs,runs/camvid/outputs]' [--figure local_fits.png]

All fits of a store run in turn, on one thread, in one process; pooled maps are made beforehand. The seconds include the
NLL of ``val`` after every epoch, which both solvers need to stop and to choose. Each gets several values of what a
search would try first: Adam learning rates, L-BFGS weight decays.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _measure import markdown
from jsonargparse import auto_cli

from lightning_calib.calibrators import Identity, PipelineName
from lightning_calib.experiment.fitting import fresh
from lightning_calib.kit.style import STYLES, look, new_figure
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import EpochSolver, make_solver, mean_nll
from lightning_calib.tasks.calibration import DeviceBatches

SOLVED = ["data", "solver", "best NLL of val", "seconds to it", "seconds in all"]
HEADER = [*SOLVED, "L-BFGS gets there in", "times faster"]
OURS = "L-BFGS"
TICKS = (0.3, 1, 3, 10, 30)  # seconds


class Point(NamedTuple):
    """Processor seconds since the start of a fit, and the NLL of ``val`` then."""

    seconds: float
    nll: float


def curve_of(solver: EpochSolver, data: StoredOutputsDataModule, limit: float) -> list[Point]:
    """Fit, and look at the clock after every epoch."""
    cpu = torch.device("cpu")
    data.train_batches = solver.batches
    train = data.batches("cal") if solver.batches == "cases" else data.train_dataloader()
    cal, val = DeviceBatches(train, cpu), DeviceBatches(data.batches("val"), cpu)
    identity = mean_nll(Identity(data.num_classes), val, data.ignore_index)[0]
    begin, curve = time.process_time(), [Point(0.0, identity)]
    solver.judge_identity(identity)
    while not solver.done and time.process_time() - begin < limit:
        for batch in cal:
            solver.accumulate(*batch)
        solver.move()
        nll = mean_nll(solver.calibrator, val, data.ignore_index)[0]
        solver.end_pass(nll)
        curve.append(Point(time.process_time() - begin, nll))
    return curve


def curves_of(
    name: PipelineName, data: StoredOutputsDataModule, decays: list[float], rates: list[float], limit: float
) -> dict[str, list[Point]]:
    """Curves of all fits of a store."""
    options: dict[str, dict[str, Any]] = {f"{OURS}, decay {decay:g}": {"weight_decay": decay} for decay in decays}
    options |= {f"Adam, lr {rate:g}": {"solver": "adam", "lr": rate} for rate in rates}
    found = {}
    for label, chosen in options.items():
        solver = make_solver(fresh(name, data, seed=0), ignore_index=data.ignore_index, **chosen)
        assert isinstance(solver, EpochSolver)
        found[label] = curve_of(solver, data, limit)
        best = min(found[label], key=lambda point: point.nll)
        print(
            f"{label}: {best.nll:.5f} after {best.seconds:.1f} s, ended at {found[label][-1].seconds:.1f} s", flush=True
        )
    return found


def lowest(curve: list[Point]) -> float:
    """The lowest NLL of a curve."""
    return min(point.nll for point in curve)


def rows_of(store: str, curves: dict[str, list[Point]]) -> list[list[str]]:
    """Lines of the table: how long the best fit by L-BFGS takes to be as good as the best epoch of each other."""
    rows, ours = [], min((curve for label, curve in curves.items() if label.startswith(OURS)), key=lowest)
    for label, curve in curves.items():
        best = min(curve, key=lambda point: point.nll)
        reached = next((point.seconds for point in ours if point.nll <= best.nll), None)
        faster = ["", ""] if label.startswith(OURS) else ["never", ""]
        if reached and not label.startswith(OURS):
            faster = [f"{reached:.1f} s", f"{best.seconds / reached:.1f}"]
        rows.append([store, label, f"{best.nll:.5f}", f"{best.seconds:.1f}", f"{curve[-1].seconds:.1f}", *faster])
    return rows


def draw(curves: dict[str, dict[str, list[Point]]], path: Path) -> None:
    """A panel a store: the lowest NLL so far against seconds; L-BFGS in full lines, Adam in broken ones."""
    with look():
        figure = new_figure(4.2 * len(curves), 3.6)
        panels = figure.subplots(1, len(curves), squeeze=False)[0]
        for panel, (store, found) in zip(panels, curves.items(), strict=True):
            for (label, curve), style in zip(found.items(), STYLES[1:], strict=True):
                so_far = torch.tensor([nll for _, nll in curve]).cummin(0).values
                seconds = [max(second, 0.3) for second, _ in curve]
                line = "-" if label.startswith(OURS) else "--"
                panel.step(seconds, so_far, where="post", label=label, color=style["color"], linestyle=line)
            panel.set(title=store, xscale="log", xlabel="processor seconds", ylabel="lowest NLL of val so far")
            panel.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS], minor=False)
            panel.set_xticks([], minor=True)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(path, dpi=110, facecolor="white")


def main(
    outputs: list[Path],
    pipeline: str = "lts_ti(p)",
    cal: float = 0.3,
    val: float = 0.2,
    decays: list[float] = [0.0, 1e-4, 1e-3],  # noqa: B006  # not changed
    rates: list[float] = [1e-2, 3e-3, 1e-3],  # noqa: B006  # not changed
    limit: float = 150.0,
    figure: Path | None = None,
) -> None:
    """Measure, print the table, draw.

    Args:
        outputs: folders of stores.
        pipeline: what to fit.
        cal: share of the cases to fit on.
        val: share of the cases that judge every epoch.
        decays: weight decays of L-BFGS.
        rates: learning rates of Adam.
        limit: processor seconds after which a fit is cut off.
        figure: where to draw the curves; their points go to a file beside it.
    """
    torch.set_num_threads(1)
    name, curves = PipelineName.parse(pipeline), {}
    for folder in outputs:
        data = StoredOutputsDataModule(folder, name.pooling, cal=cal, val=val, seed=0, group_aware=True)
        for part in ("cal", "val"):
            voxels = sum(batch[1].numel() for batch in data.batches(part))
            print(f"{folder}: {part} of {len(data.ids(part))} cases, {voxels} voxels, {data.num_classes} classes")
        curves[folder.parent.name] = curves_of(name, data, decays, rates, limit)
    print(markdown(HEADER, [row for store, found in curves.items() for row in rows_of(store, found)]))
    if figure is not None:
        figure.with_suffix(".json").write_text(json.dumps(curves), encoding="utf-8")
        draw(curves, figure)


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
