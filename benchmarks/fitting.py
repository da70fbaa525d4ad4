"""Fits of calibrators side by side with other libraries: seconds, NLL, memory.

python benchmarks/fitting.py                  the whole table (about an hour on two cores: other libraries take most)
python benchmarks/fitting.py --quick true     a small version of everything
python benchmarks/fitting.py --outputs runs/hippocampus/outputs --parts '[peers]'     voxels of a real ensemble
"""

import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _fitting_data import MappedImages, some_stored_voxels, voxels
from _measure import Measured, markdown, measure
from _peers import PEERS, counted_passes
from jsonargparse import auto_cli
from torch import Tensor

from lightning_calib.calibrators import build
from lightning_calib.solvers import fit, mean_nll

HEADER = ("fit", "library", "seconds", "times ours", "CPU seconds", "times ours", "NLL", "NLL - ours", "MiB", "passes")


@dataclass(frozen=True)
class Row:
    """One fit of one library."""

    fit: str
    library: str
    seconds: float
    processor: float
    nll: float
    mebibytes: float
    passes: str = ""

    def cells(self, ours: "Row") -> list[str]:
        """As text, next to our own figures."""
        ratio, busy = self.seconds / ours.seconds, self.processor / ours.processor
        times = [f"{self.seconds:.2f}", f"{ratio:.1f}", f"{self.processor:.2f}", f"{busy:.1f}"]
        figures = [*times, f"{self.nll:.6f}", f"{self.nll - ours.nll:+.1e}", f"{self.mebibytes:.0f}"]
        return [self.fit, self.library, *figures, self.passes]


class Table(list[list[str]]):
    """Rows that are also printed as they come: the whole takes minutes."""

    def add(self, rows: Iterable[list[str]]) -> None:
        """Print and keep rows."""
        for row in rows:
            print("  ".join(row), file=sys.stderr, flush=True)
            self.append(row)


def timed(function: Callable[[], Any]) -> tuple[Measured, float]:
    """Wall-clock time and memory, and the processors' time, which a busy machine does not change."""
    begin = time.process_time()
    run = measure(function)
    return run, time.process_time() - begin


def nll_of(log_probs: Tensor, target: Tensor) -> float:
    return float(-log_probs.gather(1, target[:, None]).double().mean())


def ours(name: str, logits: Tensor, target: Tensor, rounds: int = 1, solver: str = "auto", **options: float) -> Row:
    """Best of several fits on images ``(B, C, n)``."""
    runs, calibrators = [], []
    for _ in range(rounds):
        calibrators.append(build(name, logits.shape[1]))
        runs.append(timed(lambda: fit(calibrators[-1], logits, target, solver=solver, **options)))
    best, processor = min(runs, key=lambda run: run[0].seconds)
    nll = mean_nll(calibrators[-1], [(logits, target, None)])[0]
    label = "lightning_calib" if solver == "auto" else f"lightning_calib, {solver}"
    memory = max(run.mebibytes for run, _ in runs)
    return Row(name, label, best.seconds, processor, nll, memory, str(best.value.passes))


def compare(name: str, logits: Tensor, target: Tensor, peers: list[str], rounds: int) -> list[list[str]]:
    """Our fit of voxels ``(C, n)`` without regulariser, then the peers' fits of the same."""
    own = ours(name, logits[None], target[None], rounds, lam=0.0, mu=0.0)
    rows = [own]
    voxel_rows = logits.T.contiguous()
    for library, (function, names) in PEERS.items():
        if library in peers and name in names:
            with counted_passes() as passes:
                run, processor = timed(lambda: function(name, voxel_rows, target))  # noqa: B023
            nll = nll_of(run.value(voxel_rows), target)
            rows.append(Row(name, library, run.seconds, processor, nll, run.mebibytes, str(passes[0] or "")))
    return [row.cells(own) for row in rows]


def alone(logits: Tensor, target: Tensor) -> Iterator[list[str]]:
    """Fits with the usual regulariser, and our own Adam."""
    images, labels = logits[None], target[None]
    for name in ("ms_c", "cdc", "cms_ap", "cms_op", "ets"):
        row = ours(name, images, labels)
        yield row.cells(row)
    newton = ours("ms", images, labels)
    yield newton.cells(newton)
    yield ours("ms", logits.T.contiguous(), target, solver="adam", max_epochs=20, lr=0.01).cells(newton)
    side = int(len(target) ** 0.5)
    square = side * side
    image, label = logits[:, :square].view(1, -1, side, side), target[:square].view(1, side, side)
    local = ours("lts_ti", image, label, max_epochs=5)
    yield local.cells(local)


def memory(sizes: tuple[int, ...], num_classes: int = 8) -> Iterator[list[str]]:
    """Fits from memory-mapped files of growing size."""
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            images = MappedImages(Path(folder), size, num_classes)
            for name in ("ms", "cms_ap"):
                run, processor = timed(lambda: fit(build(name, num_classes), images))  # noqa: B023
                label = f"{name}, {size:,} x {num_classes} mapped"
                figures = (run.seconds, processor, run.value.nll, run.mebibytes, str(run.value.passes))
                row = Row(label, "lightning_calib", *figures)
                yield row.cells(row)


def main(
    voxel_count: int = 1_000_000,
    num_classes: int = 20,
    rounds: int = 3,
    threads: int = 2,
    outputs: str | None = None,
    fits: list[str] = ["ts", "vs", "ms", "dc", "cms_op"],  # noqa: B006  # jsonargparse shows it
    peers: list[str] = [*PEERS],  # noqa: B006
    parts: list[str] = ["peers", "alone", "classes", "memory"],  # noqa: B006
    quick: bool = False,
) -> None:
    """Print the table.

    Args:
        voxel_count: voxels of the side-by-side comparison.
        num_classes: their classes.
        rounds: repetitions of our own fits, of which the fastest counts.
        threads: processor cores to use.
        outputs: stored outputs to take the voxels from, in place of made-up ones.
        fits: calibrators of the side-by-side comparison.
        peers: libraries to compare with.
        parts: which parts of the table to run.
        quick: a tenth of the voxels and short memory rows.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    voxel_count = voxel_count // 10 if quick else voxel_count
    drawn = voxels(voxel_count, num_classes) if outputs is None else some_stored_voxels(outputs, voxel_count)
    logits, target = drawn
    num_classes, voxel_count = logits.shape
    print(f"{voxel_count:,} voxels, {num_classes} classes, {torch.get_num_threads()} threads")
    fit(build("ms", num_classes), logits[None, :, :50_000], target[None, :50_000])  # warm up
    rows = Table()
    for name in fits if "peers" in parts else ():
        rows.add(compare(name, logits, target, peers, rounds))
    if "alone" in parts:
        rows.add(alone(logits, target))
    for name in ("ms", "cms_ap") if "classes" in parts else ():
        many, many_target = voxels(voxel_count // 5, 118)
        row = ours(name, many[None], many_target[None])
        rows.add([[f"{name}, {voxel_count // 5:,} x 118", *row.cells(row)[1:]]])
    if "memory" in parts:
        rows.add(memory((100_000, 1_000_000) if quick else (1_000_000, 10_000_000, 50_000_000)))
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
