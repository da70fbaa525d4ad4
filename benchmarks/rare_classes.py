"""Passes and processor seconds of fits on street-like images with rare classes, first and from an earlier optimum.

python benchmarks/rare_classes.py [--images 12] [--against /path/to/another/tree]

With ``--against``, the same fits with the package of another working tree, in the same run. One thread.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from _measure import markdown
from _street_data import street
from jsonargparse import auto_cli
from torch import Tensor

from lightning_calib.calibrators import build
from lightning_calib.solvers import ConvergenceError, NewtonSolver
from lightning_calib.solvers.stream import KeptWalk

HEADER = ["fit", "strengths", "start", "passes", "CPU seconds", "objective", "gradient"]
FIRST = ((1e-3, 1e-3), (1e-6, 1e-6))
WARM = ((1e-4, 1e-4), (1e-2, 1e-3), (1e-5, 1.0))


def one_fit(name: str, data: list, strengths: tuple[float, float], start: dict[str, Tensor] | None) -> tuple:  # type: ignore[type-arg]
    """A row of the table, and the parameters that were found."""
    calibrator = build(name, data[0][0].shape[1])
    if start is not None:
        calibrator.load_state_dict(start)
    begin = time.process_time()
    solver = NewtonSolver(calibrator, *strengths, walk=KeptWalk(calibrator))
    try:
        certificate = solver.solve(data)
    except ConvergenceError as problem:
        certificate = problem.certificate
    seconds, label = time.process_time() - begin, "identity" if start is None else "optimum"
    figures = [str(certificate.passes), f"{seconds:.1f}", f"{certificate.objective:.8f}"]
    strong = ", ".join(f"{value:g}" for value in strengths)
    return [name, strong, label, *figures, f"{certificate.gradient_norm:.1e}"], calibrator.state_dict()


def main(images: int = 12, fits: list[str] = ["ms", "cms_op", "cdc"], against: Path | None = None) -> None:  # noqa: B006
    """Print the table.

    Args:
        images: of 128 x 256 voxels.
        fits: calibrators.
        against: another working tree of this package.
    """
    torch.set_num_threads(1)
    data, rows = street(images), []
    for name in fits:
        (first, start), *others = (one_fit(name, data, strengths, None) for strengths in FIRST)
        rows += [first, *(row for row, _ in others), *(one_fit(name, data, strengths, start)[0] for strengths in WARM)]
    print(markdown(HEADER, rows), flush=True)
    if against is not None:
        environment = {**os.environ, "PYTHONPATH": str(against)}
        command = [sys.executable, __file__, "--images", str(images), "--fits", f"[{','.join(fits)}]"]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
