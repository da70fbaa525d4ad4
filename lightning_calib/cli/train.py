"""``train.py``: train segmentation ensembles and store their outputs."""

import os
import sys
from collections.abc import Sequence
from functools import partial

from lightning_calib.cli.commands import Command, Commands, answered, full_help
from lightning_calib.cli.configs import read_older_configs, with_packaged
from lightning_calib.cli.errors import guarded
from lightning_calib.kit.child import end_with_parent

_COMMON = (
    ("--config", "file with the data set, the network and the training, such as configs/shapes.yaml (required)"),
    ("--name", "name of the run; it is usually in the config file"),
    ("--runs_dir", "folder of all runs (default: runs)"),
)
_MORE = ("--trainer.*, --data.*, --model.*", "everything that Lightning's Trainer, the data set and the network take")
_EPOCHS = ("--trainer.max_epochs", "epochs of training")
_SEED = ("--seed_everything", "seed, which also names the member (default: 0)")


def _command(name: str, group: str, told: tuple[tuple[str, str], ...], more: str = "") -> Command:
    return Command(
        f"lightning_calib.cli.training:{name}",
        group,
        told=(*_COMMON, *told, _MORE),
        examples=(f"{name} --config configs/shapes.yaml{more}",),
    )


COMMANDS: Commands = {
    "check": _command(
        "check",
        "Start",
        (
            ("--cases", "cases that values and near copies are looked for in (default: 300)"),
            ("--sheet", "also write a contact sheet, check.png in the folder of the run (default: true)"),
        ),
    ),
    "ensemble": _command(
        "ensemble",
        "Start",
        (
            ("--members", "number of networks (default: 5)"),
            ("--parallel", "networks that train at a time; by default one a GPU, or one"),
            ("--executor", "where they train: local, ray, or the name of another executor (default: local)"),
            _EPOCHS,
        ),
        " --members 3",
    ),
    "predict": _command(
        "predict",
        "Start",
        (
            ("--outputs.keep", "members, or pooled for their pooled logits alone (default: members)"),
            ("--outputs.dtype", "precision of the stored logits (default: float32)"),
            ("--images", "image file or folder of new images without masks, in place of the pool set"),
            ("--corruption", "mild or strong: change every image first, for the study of shifts"),
        ),
    ),
    "fit": _command("fit", "One network", (_SEED, _EPOCHS), " --seed_everything 1"),
    "validate": _command("validate", "One network", (_SEED,)),
    "test": _command("test", "One network", (_SEED,)),
}


def main(args: Sequence[str] | None = None) -> int:
    """Train segmentation ensembles and store their outputs.

    Args:
        args: the command line without the program's name; None takes it from the system.

    Returns:
        The exit code: 2 where the user can mend something, with a message (see ``guarded``).
    """
    line = with_packaged(sys.argv[1:] if args is None else args)
    return guarded(partial(_run, line), ["train.py", *line])


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
    TrainCLI(full_help(line))
    return 0
