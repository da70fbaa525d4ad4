"""An experiment small enough for tests that has every kind of fit."""

from pathlib import Path

from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.results import Results

NAMES = ["identity(p0)", "identity(z)", "ms(z)", "dc(z)", "lts_ti(z)", "cms_op(p)", "cdc(p)", "ts(z)", "ets(p)"]


SHARD_VOXELS = 2000  # two cases of 32 x 40


def small_experiment(outputs, folder=None, **changes) -> Experiment:
    """Two repeats, two trials, one epoch of LTS; selected as the paper does, though the cases have groups."""
    settings = {"pipelines": NAMES, "repeats": 2, "trials": 2, "cal": 4, "val": 3, "lts_trials": 1, "lts_epochs": 1}
    paper = {"selection": "paper", "calibration": folder and Path(folder)}
    return Experiment(str(outputs), **(settings | paper | changes))


def run_small(
    outputs, folder, workers=0, executor="local", shard_voxels=SHARD_VOXELS, join=False, **changes
) -> Results:
    """Run it without a word, with evaluations of several shards."""
    options = {"workers": workers, "executor": executor, "display": False, "logger": None, "join": join}
    return small_experiment(outputs, folder, **changes).run(shard_voxels=shard_voxels, **options)
