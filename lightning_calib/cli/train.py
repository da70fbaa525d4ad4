"""``train.py``: train segmentation ensembles and store their outputs."""

import os
import sys
from collections.abc import Sequence
from functools import partial

from lightning_calib.cli.commands import Commands, answered
from lightning_calib.cli.configs import read_older_configs, with_packaged
from lightning_calib.cli.errors import guarded
from lightning_calib.kit.child import end_with_parent

COMMANDS: Commands = {
    name: f"lightning_calib.cli.training:{name}" for name in ("fit", "validate", "test", "predict", "ensemble")
}


def main(args: Sequence[str] | None = None) -> int:
    """Train segmentation ensembles and store their outputs.

    Args:
        args: the command line without the program's name; None takes it from the system.

    Returns:
        The exit code: 2 where the user can mend something, with a message (see ``guarded``).
    """
    return guarded(partial(_run, with_packaged(sys.argv[1:] if args is None else args)))


def _run(line: list[str]) -> int | None:
    if answered("train.py", str(main.__doc__).partition("\n")[0], COMMANDS, line):
        return 0
    end_with_parent()
    if not os.environ.get("WANDB_SWEEP_ID"):  # whose server waits for results
        os.environ.setdefault("WANDB_MODE", "offline")  # online on request: WANDB_MODE=online
    from lightning_calib.cli.training import TrainCLI
    from lightning_calib.kit.noise import silence

    silence()
    read_older_configs()
    TrainCLI(line)
    return 0
