"""The commands of an installed package: ``lightning-calib train|calibrate|demo ...``."""

import sys
from collections.abc import Sequence

from lightning_calib.cli.commands import Command, Commands, answered, load
from lightning_calib.cli.errors import guarded

COMMANDS: Commands = {
    "demo": Command("lightning_calib.cli.demo:main"),
    "train": Command("lightning_calib.cli.train:main"),
    "calibrate": Command("lightning_calib.cli.calibrate:main"),
    "completion": Command("lightning_calib.cli.completion:main"),
}


def main(args: Sequence[str] | None = None) -> int:
    """Hand the rest of the command line to the command that it starts with."""
    line = list(sys.argv[1:] if args is None else args)
    return guarded(lambda: _run(line), ["lightning-calib", *line])


def _run(line: list[str]) -> int:
    about = "Trustworthy confidences for segmentation ensembles."
    if answered("lightning-calib", about, COMMANDS, line):
        return 0
    if line[0] not in COMMANDS:
        raise ValueError(f"unknown option {line[0]!r}; a command comes first: {', '.join(COMMANDS)}")
    code: int = load(COMMANDS[line[0]])(line[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
