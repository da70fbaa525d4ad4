"""``lightning-calib completion``: what a shell needs to complete commands and options."""

import argparse
from collections.abc import Sequence
from typing import Any

from lightning_calib.cli import calibrate, train
from lightning_calib.cli.commands import Command, Commands, Family, load
from lightning_calib.cli.signatures import parameters

SHELLS = ("bash", "zsh", "tcsh")
_DEMO = Command("lightning_calib.cli.demo:demo")


def main(args: Sequence[str]) -> int:
    """Print a completion script for bash, zsh or tcsh.

    Args:
        args: the shell.

    Raises:
        ValueError: where it is none of these.
    """
    import shtab

    if len(args) != 1 or args[0] not in SHELLS:
        raise ValueError(
            f"name a shell, one of {', '.join(SHELLS)}, such as\n"
            '  eval "$(lightning-calib completion bash)"                        # this session\n'
            "  lightning-calib completion zsh > ~/.zfunc/_lightning-calib       # every session"
        )
    print(shtab.complete(tree(), args[0]))
    return 0


def tree() -> argparse.ArgumentParser:
    """All commands and options, in the form that shtab reads."""
    top = argparse.ArgumentParser("lightning-calib")
    below = top.add_subparsers()
    for name, commands in (("train", train.COMMANDS), ("calibrate", calibrate.COMMANDS)):
        _grow(below.add_parser(name, help=name), commands)
    _grow(top, {"demo": _DEMO, "completion": Command("")}, below)
    return top


def _grow(parser: argparse.ArgumentParser, commands: Commands, below: Any = None) -> None:  # noqa: ANN401
    """Add commands below a parser; shtab leaves out those without a help."""
    below = below or parser.add_subparsers()
    for name, entry in commands.items():
        inner = below.add_parser(name, help=name)
        if isinstance(entry, Family):
            _grow(inner, entry.members)
        elif entry.place.endswith(":COMMANDS"):  # functions that are made when they are asked for
            _grow(inner, {study: Command("") for study in load(entry) if study != "_help"})
        else:
            for option in options(entry):
                inner.add_argument(option)


def options(command: Command) -> list[str]:
    """Options of a command, read from its source; of train.py's, those that its help tells."""
    told = [option for option, _ in command.told if "*" not in option]
    if not command.place or command.place.startswith("lightning_calib.cli.training:"):
        return told
    places = [place for place in (command.place, command.rest) if place]
    taken = [f"--{name}" for place in places for name in parameters(place) if name not in ("args", "trainer")]
    return sorted({*told, *taken})
