"""Processor seconds of a search and its final fit on street-like voxels: on a coreset, exact, and by other checkouts.

python benchmarks/coreset.py [--images 96] [--trials 20] [--fits '[ms,cms_op,cdc]'] [--against '[../old_checkout]']

One thread. A quarter of the images are ``val``.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from _measure import markdown
from _street_data import street_image
from jsonargparse import auto_cli

import lightning_calib as lc

ROOT = Path(__file__).parents[1]
HEADER = ("fit", "checkout", "trials on", "CPU seconds", "NLL of val", "lam", "mu", "objective", "passes")
SIZE, CLASSES = (256, 512), 20


def make_store(folder: Path, images: int) -> None:
    """Outputs of one member."""
    made = {f"street{number:03d}": street_image(number, CLASSES, SIZE) for number in range(images)}
    scores, labels = ({name: pair[i][None] if i == 0 else pair[1] for name, pair in made.items()} for i in (0, 1))
    lc.from_arrays(folder, scores, labels, ignore_index=255, dataset="street")


def one(outputs: Path, fit: str, trials: int, search: str) -> None:
    """Search and final fit in this process; prints what came out as JSON."""
    from lightning_calib.experiment.search.search import search as run_search
    from lightning_calib.outputs.stored import StoredOutputsDataModule

    torch.set_num_threads(1)
    data = StoredOutputsDataModule(outputs, pooling="z", cal=0.75, val=None, test=0)
    options = {} if search == "always" else {"search": search}
    begin = time.process_time()
    found = run_search(f"{fit}(z)", data, trials, accelerator="cpu", **options)
    calibrator = found.calibrator
    seconds = time.process_time() - begin
    nll = lc.solvers.mean_nll(calibrator, data.batches("val"), data.ignore_index)[0]
    certificate = found.certificate
    facts = {"seconds": seconds, "nll": nll, **found.hyperparameters}
    print(json.dumps(facts | {"objective": certificate["objective"], "passes": certificate["passes"]}))


def row(checkout: Path, outputs: Path, fit: str, trials: int, search: str) -> tuple[str, ...]:
    """One search of a checkout, in a process of its own."""
    line = [sys.executable, str(Path(__file__)), "--one_fit", fit, "--outputs", str(outputs)]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    line += ["--trials", str(trials), "--search", search]
    done = subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    figures = [f"{found['seconds']:.1f}", f"{found['nll']:.7f}", f"{found['lam']:.2g}", f"{found['mu']:.2g}"]
    return fit, checkout.name, search, *figures, f"{found['objective']:.8f}", str(found["passes"])


def main(
    images: int = 96,
    trials: int = 20,
    fits: list[str] = ["ms", "cms_op", "cdc"],  # noqa: B006  # jsonargparse shows it
    against: list[Path] = [],  # noqa: B006
    outputs: Path | None = None,
    search: str = "coreset",
    exact: bool = True,
    one_fit: str | None = None,
) -> None:
    """Print the table.

    Args:
        images: of 256 x 512 voxels.
        trials: of each search.
        fits: calibrators.
        against: other checkouts, which search on all voxels.
        outputs: a store that is there already.
        search: of the one fit.
        exact: search on all voxels with this checkout, too.
        one_fit: only this, in this process.
    """
    if one_fit is not None:
        assert outputs is not None
        one(outputs, one_fit, trials, search)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = outputs or Path(folder) / "outputs"
        if outputs is None:
            make_store(place, images)
        rows = []
        for fit in fits:
            todo = [
                (ROOT, "coreset"),
                *([(ROOT, "exact")] if exact else []),
                *((old.resolve(), "always") for old in against),
            ]
            for checkout, kind in todo:
                rows.append(row(checkout, place, fit, trials, kind))
                print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
