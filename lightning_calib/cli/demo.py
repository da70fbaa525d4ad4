"""``python -m lightning_calib demo``: from nothing to a calibrated ensemble on made-up images."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import auto_cli

import lightning_calib
from lightning_calib.cli import calibrate, train
from lightning_calib.kit.progress import spoken

CONFIG = Path(lightning_calib.__file__).parents[1] / "configs" / "shapes.yaml"


def demo(
    name: str = "demo",
    runs_dir: Path = Path("runs"),
    config: Path = CONFIG,
    members: int = 3,
    repeats: int = 3,
    trials: int = 4,
    lts_trials: int = 1,
    lts_epochs: int = 8,
) -> int:
    """Train an ensemble on made-up images, store its outputs, calibrate it with every pipeline of the paper, report.

    Args:
        name: name of the run.
        runs_dir: folder of all runs.
        config: what to train, and on what.
        members: networks of the ensemble.
        repeats: random partitions of the held-out images.
        trials: trials of each search.
        lts_trials: trials for local temperature scaling.
        lts_epochs: epochs of local temperature scaling.
    """
    if not config.is_file():
        raise ValueError(f"{config} is missing: the demo's config is part of the repository, not of the package")
    started = time.monotonic()
    where = ["--config", str(config), "--name", name, "--runs_dir", str(runs_dir)]
    print(f"1/3 training {members} networks on made-up images", flush=True)
    train.main(["ensemble", *where, "--members", str(members)])
    print("2/3 storing their outputs on held-out images", flush=True)
    train.main(["predict", *where])
    print("3/3 calibrating", flush=True)
    code = calibrate.main(
        [
            "run",
            *("--outputs", str(runs_dir / name / "outputs")),
            *("--cal", "0.4", "--val", "0.2"),
            *("--repeats", str(repeats)),
            *("--trials", str(trials)),
            *("--lts_trials", str(lts_trials)),
            *("--lts_epochs", str(lts_epochs)),
        ]
    )
    print(f"all of it took {spoken(time.monotonic() - started)}")
    return code


def main(args: Sequence[str] | None = None) -> None:
    """Run the demo."""
    sys.exit(auto_cli(demo, args=None if args is None else list(args), as_positional=False))
