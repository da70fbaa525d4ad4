"""``calibrate.py``: fit calibrators on stored outputs and judge them.

A command is a typed function: its signature is the schema of its options, its docstring their help.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial

from lightning_calib.cli.commands import Commands, answered, load
from lightning_calib.cli.configs import with_packaged
from lightning_calib.cli.errors import guarded, named

# One line adds a command: a function that returns its exit code, or None for 0.
COMMANDS: Commands = {
    "run": "lightning_calib.cli.run:run",
    "recommend": "lightning_calib.cli.recommend:recommend",
    "compare": "lightning_calib.cli.compare:compare",
    "report": "lightning_calib.cli.report:report",
    "evaluate": "lightning_calib.cli.evaluate:evaluate",
    "fit": "lightning_calib.cli.fit:fit",
    "search": "lightning_calib.cli.search:search",
    "import": {
        "_help": "Outputs of other programs.",
        "folder": "lightning_calib.cli.import_outputs:import_folder",
        "nnunet": "lightning_calib.cli.import_outputs:import_nnunet",
    },
    "doctor": "lightning_calib.cli.doctor:doctor",
    "verify": "lightning_calib.cli.doctor:verify",
    "deploy": "lightning_calib.cli.deploy:deploy",
    "apply": "lightning_calib.cli.apply:apply",
    "dashboard": "lightning_calib.cli.dashboard:dashboard",
    "export": "lightning_calib.cli.export:export",
    "monitor": "lightning_calib.cli.monitor:monitor",
    "audit": "lightning_calib.cli.audit:audit",
    "study": "lightning_calib.cli.study:COMMANDS",
    "reproduce": "lightning_calib.cli.reproduce:reproduce",
}


def main(args: Sequence[str] | None = None) -> int:
    """Fit, compare and deploy calibrators on stored outputs.

    Args:
        args: the command line without the program's name; None takes it from the system.

    Returns:
        The exit code. Bad input gives 2 and a message without a traceback; the environment variable
        ``LIGHTNING_CALIB_TRACEBACK=1`` brings the traceback back.
    """
    line = list(sys.argv[1:] if args is None else args)
    return guarded(partial(_run, with_packaged(line, "calibrate")))


def _run(line: list[str]) -> int | None:
    completing = "_ARGCOMPLETE" in os.environ
    if not completing and answered("calibrate.py", str(main.__doc__).partition("\n")[0], COMMANDS, line):
        return 0
    # The parser of one command is quick to build; options before the command, and completion, need them all.
    one = not completing and line[0] in COMMANDS
    components = load({line[0]: COMMANDS[line[0]]} if one else COMMANDS)
    from jsonargparse import auto_cli, set_parsing_settings

    from lightning_calib.cli.parser import Parser
    from lightning_calib.kit.noise import silence

    silence()
    if "pytorch_lightning" in sys.modules:
        from pytorch_lightning import Trainer

        from lightning_calib.cli.trainer import TrainerOptions

        set_parsing_settings(subclasses_disabled=[Trainer, TrainerOptions])  # --trainer.devices, not a class path
    code: int | None = auto_cli(
        components, args=line, as_positional=False, parser_class=Parser, prog=named("calibrate.py")
    )
    return code
