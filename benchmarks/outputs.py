"""Calibrators of several libraries on the stored outputs of a real ensemble: fitted on cal, scored on test.

python benchmarks/outputs.py --outputs runs/hippocampus/outputs --cal 50 --val 30 --test 50
"""

import logging
import time
import warnings

import torch
from _fitting_data import some, stored_voxels
from _measure import markdown, measure
from _peers import PEERS, LogProbs
from jsonargparse import auto_cli
from torch import Tensor

from lightning_calib.calibrators import build
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.stored import Size, StoredOutputsDataModule
from lightning_calib.solvers import fit

HEADER = ("fit", "library", "NLL on cal", "NLL on test", "ECE on test", "argmax changed", "CPU seconds", "MiB")
BINS = 50


def scores(log_probs: Tensor, target: Tensor) -> tuple[float, float]:
    """NLL, and ECE over all voxels together in equal bins."""
    nll = float(-log_probs.gather(1, target[:, None]).double().mean())
    top = log_probs.max(1)
    confidence, correct = top.values.double().exp(), (top.indices == target).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidence - correct)
    return nll, float(gaps.abs().sum() / len(target))


def ours(name: str, logits: Tensor, target: Tensor) -> LogProbs:
    """Our fit without regulariser, of the same voxels."""
    calibrator = build(name, logits.shape[1])
    fit(calibrator, logits, target, lam=0.0, mu=0.0)
    return lambda voxels: calibrator(voxels).detach()


def main(
    outputs: str,
    pooling: Pooling = "z",
    cal: Size = 50,
    val: Size = 0.2,
    test: Size = None,
    repeat: int = 0,
    group_aware: bool = False,
    fits: list[str] = ["ts", "vs", "ms", "dc"],  # noqa: B006  # jsonargparse shows it
    libraries: list[str] = ["lightning_calib", *PEERS],  # noqa: B006
    threads: int = 2,
    voxels: int | None = None,
) -> None:
    """Print the table.

    Args:
        outputs: folder of the frozen outputs.
        pooling: how members are pooled.
        cal: size of the part that is fitted on.
        val: size of the part that is left aside here.
        test: size of the part that is scored.
        repeat: which partition.
        group_aware: keep groups of cases in one part.
        fits: calibrators to fit.
        libraries: whose fits to run, where they have them.
        threads: processor cores to use.
        voxels: how many voxels of a part are taken at most, at random; all by default.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    data = StoredOutputsDataModule(outputs, pooling, repeat, cal, val, test, group_aware=group_aware)
    logits, target = some(*stored_voxels(data, "cal"), voxels)
    held_out, held_out_target = some(*stored_voxels(data, "test"), voxels)
    print(f"{outputs}, {pooling}: {len(target):,} voxels of {logits.shape[1]} classes to fit, ", end="")
    print(f"{len(held_out_target):,} to score, {torch.get_num_threads()} threads")
    before = held_out.argmax(1)
    rows = [_row("none", "", *_scores_of(lambda v: v.log_softmax(1), logits, target, held_out, held_out_target))]
    for name in fits:
        have = {"lightning_calib": ours, **{k: peer for k, (peer, names) in PEERS.items() if name in names}}
        for library, function in ((k, have[k]) for k in libraries if k in have):
            began = time.process_time()
            run = measure(lambda: function(name, logits, target))  # noqa: B023
            seconds = time.process_time() - began
            figures = _scores_of(run.value, logits, target, held_out, held_out_target)
            changed = float((run.value(held_out).argmax(1) != before).double().mean())
            rows.append(_row(name, library, *figures, f"{changed:.2%}", f"{seconds:.2f}", f"{run.mebibytes:.0f}"))
            print("  ".join(rows[-1]), flush=True)
    print(markdown(HEADER, rows))


def _scores_of(fitted: LogProbs, *voxels: Tensor) -> tuple[float, float, float]:
    """NLL on cal, NLL and ECE on test."""
    logits, target, held_out, held_out_target = voxels
    return scores(fitted(logits), target)[0], *scores(fitted(held_out), held_out_target)


def _row(name: str, library: str, cal_nll: float, nll: float, ece: float, *rest: str) -> list[str]:
    """As text."""
    return [name, library, f"{cal_nll:.6f}", f"{nll:.6f}", f"{ece:.5f}", *(rest or ("0.00%", "", ""))]


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
