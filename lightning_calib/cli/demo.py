"""``python -m lightning_calib demo``: from nothing to a calibrated ensemble on made-up images."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lightning_calib.cli import calibrate, train
from lightning_calib.cli.configs import CONFIGS
from lightning_calib.cli.errors import guarded
from lightning_calib.kit.progress import spoken

CONFIG = CONFIGS / "shapes.yaml"


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
    started = time.monotonic()
    where = ["--config", str(config), "--name", name, "--runs_dir", str(runs_dir)]
    sizes = {"repeats": repeats, "trials": trials, "lts_trials": lts_trials, "lts_epochs": lts_epochs}
    protocol = ["--cal", "0.4", "--val", "0.2", *(f"--{option}={value}" for option, value in sizes.items())]
    steps = {
        f"1/3 training {members} networks on made-up images": partial(
            train.main, ["ensemble", *where, "--members", str(members)]
        ),
        "2/3 storing their outputs on held-out images": partial(train.main, ["predict", *where]),
        "3/3 calibrating": partial(calibrate.main, ["run", "--outputs", str(runs_dir / name / "outputs"), *protocol]),
    }
    for title, step in steps.items():
        print(title, flush=True)
        if code := step():
            return code
    print(f"all of it took {spoken(time.monotonic() - started)}")
    return 0


def main(args: Sequence[str]) -> int:
    """From nothing to a calibrated ensemble on made-up images."""
    from jsonargparse import auto_cli

    from lightning_calib.cli.parser import Parser

    run = partial(auto_cli, demo, as_positional=False, parser_class=Parser, prog="lightning-calib demo")
    return guarded(lambda: run(args=list(args)))
