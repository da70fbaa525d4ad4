"""The commands of an installed package: ``python -m lightning_calib train|calibrate|demo ...``."""

import importlib
import sys

COMMANDS = {
    "train": "train segmentation ensembles and store their outputs",
    "calibrate": "fit, compare and deploy calibrators on stored outputs",
    "demo": "from nothing to a calibrated ensemble on made-up images",
}


def main() -> None:
    """Hand the rest of the command line to the command that it starts with."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        listed = "\n".join(f"  {command:<10} {what}" for command, what in COMMANDS.items())
        usage = f"usage: lightning-calib COMMAND ...\n\n{listed}\n\nCOMMAND --help says more."
        if name in ("-h", "--help"):
            print(usage)
            return
        sys.exit(f"unknown command {name!r}\n{usage}" if name else usage)
    sys.exit(importlib.import_module(f"lightning_calib.cli.{name}").main(sys.argv[2:]))


if __name__ == "__main__":
    main()
