"""``calibrate.py``: fit calibrators on stored outputs and judge them.

A command is a typed function: its signature is the schema of its options, its docstring their help.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jsonargparse import ArgumentParser, auto_cli, set_parsing_settings
from pytorch_lightning import Trainer

from lightning_calib.cli import study
from lightning_calib.cli.apply import apply
from lightning_calib.cli.audit import audit
from lightning_calib.cli.compare import compare
from lightning_calib.cli.deploy import deploy
from lightning_calib.cli.doctor import doctor
from lightning_calib.cli.evaluate import evaluate
from lightning_calib.cli.export import export
from lightning_calib.cli.fit import fit
from lightning_calib.cli.import_outputs import import_folder, import_nnunet
from lightning_calib.cli.monitor import monitor
from lightning_calib.cli.noise import silence
from lightning_calib.cli.recommend import recommend
from lightning_calib.cli.report import report
from lightning_calib.cli.reproduce import reproduce
from lightning_calib.cli.run import run
from lightning_calib.cli.search import search
from lightning_calib.cli.verify import verify

TRACEBACK = "LIGHTNING_CALIB_TRACEBACK"

# One line adds a command. It returns its exit code, or None for 0. A dictionary holds commands below a command.
COMMANDS: dict[str, Callable[..., int | None] | dict[str, Any]] = {
    "run": run,
    "recommend": recommend,
    "compare": compare,
    "report": report,
    "evaluate": evaluate,
    "fit": fit,
    "search": search,
    "import": {"_help": "Outputs of other programs.", "folder": import_folder, "nnunet": import_nnunet},
    "doctor": doctor,
    "verify": verify,
    "deploy": deploy,
    "apply": apply,
    "export": export,
    "monitor": monitor,
    "audit": audit,
    "reproduce": reproduce,
}


class Parser(ArgumentParser):
    """Parser that guesses nothing and whose switches need no value: ``--json`` says the same as ``--json true``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **(options | {"allow_abbrev": False}))  # --repeat is not --repeats

    def add_argument(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as the parent has it
        """Add an argument; a boolean one gets ``true`` as its value where none is written."""
        if options.get("type") is bool:
            options |= {"nargs": "?", "const": True}
        return super().add_argument(*args, **options)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        args: the command line without the program's name; None takes it from the system.

    Returns:
        The exit code. Bad input gives 2 and a message without a traceback; the environment variable
        ``LIGHTNING_CALIB_TRACEBACK=1`` brings the traceback back.
    """
    silence()
    set_parsing_settings(subclasses_disabled=[Trainer])  # --trainer.devices, not a class path
    line = None if args is None else list(args)
    try:
        code: int | None = auto_cli(
            COMMANDS | {"study": study.COMMANDS},
            args=line,
            as_positional=False,
            parser_class=Parser,
            prog="calibrate.py",
        )
    except (ValueError, OSError) as problem:
        if os.environ.get(TRACEBACK):
            raise
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return code or 0
