"""Parsers that guess nothing and say in few lines what is wrong with an option."""

import difflib
import importlib
import os
import re
import sys
from argparse import _SubParsersAction
from collections.abc import Iterator
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from lightning_calib.cli.errors import TRACEBACK, corrected
from lightning_calib.cli.executors import EXECUTOR, executor_action, executors_help
from lightning_calib.cli.plain_help import PlainHelp
from lightning_calib.kit.program import named

# What jsonargparse says about its own ways of trying.
_NOISE = re.compile(r"\s*(Does not validate|Subtypes:|Errors:|- Expected a <class 'NoneType'>|Given value)")
_OPTION = re.compile(r"(?:unrecognized arguments: --|ption ')([\w.]+)")
_WRITTEN = re.compile(r"unrecognized arguments: --([\w.]+)")
_GROUP = re.compile(r"Group '([\w.]+)' does not")
_MISSING = re.compile(r"the following arguments are required: ([\w.]+).*")  # keys begin with the command
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "Path": "a path"}
_CLASS = re.compile(r"class_path '([\w.]+)'")


class BriefErrors(ArgumentParser):
    """Parser that takes no abbreviations and names the nearest option where it refuses one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        fixed = {"allow_abbrev": False, "formatter_class": PlainHelp}  # --repeat is not --repeats
        super().__init__(*args, **(options | fixed))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, the message first, and exit with 2."""
        if os.environ.get(TRACEBACK) or not self.exit_on_error:  # parsers inside hand it up
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        lines = [_plain(line) for line in message.splitlines() if not _NOISE.match(line)]
        if near := nearest(message, parser):
            lines.append(f"did you mean {near}?")
            lines += self._tried(message, near)
        program = parser.prog.replace(" [options]", "")
        if (missing := _MISSING.match(message)) is not None:
            program = " ".join([program, *missing[1].split(".")[:-1]])
        lines.append(f"({program} --help lists the options)")
        print(named("error: " + "\n".join(lines)), file=sys.stderr)
        self.exit(2)

    @staticmethod
    def _tried(message: str, near: str) -> list[str]:
        """The corrected command, where the option was written on the command line."""
        refused = _WRITTEN.search(message)
        line = refused and corrected({f"--{refused[1]}": f"--{near}"})
        return [f"try: {line}"] if line else []

    def add_argument(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as the parent has it
        """Add an argument; that of the executor takes its options one by one, too."""
        action = super().add_argument(*args, **options)
        if EXECUTOR in args:
            action.__class__ = executor_action(type(action))
        return action

    def format_help(self, *args: Any) -> str:
        """Help that calls our programs as this one was called, with the options of all executors."""
        chooses = any(EXECUTOR in action.option_strings for action in self._actions)
        return named(super().format_help(*args) + (executors_help() if chooses else ""))


class Parser(BriefErrors):
    """Parser whose switches need no value: ``--json`` says the same as ``--json true``."""

    def add_argument(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as the parent has it
        """Add an argument; a boolean one gets ``true`` as its value where none is written."""
        if options.get("type") is bool:
            options |= {"nargs": "?", "const": True}
        return super().add_argument(*args, **options)


def _plain(line: str) -> str:
    """A line of jsonargparse's, without Python's names of types."""
    line = re.sub(
        r"(?:Expected an? )?<class '(\w+)'>", lambda found: f"Expected {_KINDS.get(found[1], found[1])}", line
    )
    line = re.sub(r'^Parser key "([\w.]+)":', r"--\1:", line)
    missing = _MISSING.match(line)
    if missing is None:
        return line
    options = [f"--{key.rpartition('.')[2]}" for key in missing[0].rpartition(": ")[2].split(", ")]
    return f"{' and '.join(options)} must be given"


def nearest(message: str, parser: ArgumentParser) -> str | None:
    """The option that was probably meant by the one that a message refuses."""
    refused = _OPTION.search(message)
    if refused is None:
        return None
    group, path = _GROUP.search(message), _CLASS.search(message)
    name = f"{group[1]}.{refused[1]}" if group else refused[1]
    names = _arguments(path[1]) if path else _options(parser)
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def _options(parser: Any) -> Iterator[str]:  # noqa: ANN401  # argparse's parts have no types
    for action in parser._actions:
        yield from (option.lstrip("-") for option in action.option_strings if option.startswith("--"))
        if isinstance(action, _SubParsersAction):
            for inner in (action.choices or {}).values():
                yield from _options(inner)


def _arguments(class_path: str) -> Iterator[str]:
    module, _, name = class_path.rpartition(".")
    parser = ArgumentParser()
    parser.add_class_arguments(getattr(importlib.import_module(module), name))
    return _options(parser)
