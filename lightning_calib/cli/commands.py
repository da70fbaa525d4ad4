"""The commands of a program: where each is, and its line of help, which nothing is imported for."""

import ast
import difflib
import importlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_calib import __version__
from lightning_calib.cli.errors import named

# A command is "module:function"; a dictionary holds commands below a command, and their common help as "_help".
Commands = Mapping[str, "str | Commands"]


def answered(program: str, about: str, commands: Commands, line: Sequence[str]) -> bool:
    """Answer ``--help``, ``--version`` and wrong commands at once.

    Args:
        program: name of the program.
        about: one line on it.
        commands: its commands.
        line: the command line without the program's name.

    Returns:
        False where there is a command to be run.

    Raises:
        ValueError: where no command has the name that the line begins with.
    """
    if line[:1] == ["--version"]:
        print(f"lightning_calib {__version__}")
    elif line[:1] in (["-h"], ["--help"]):
        print(overview(program, about, commands))
    elif not line:
        raise ValueError(f"no command\n{overview(program, about, commands)}")
    elif line[0] in commands or line[0].startswith("-"):
        return False
    else:
        near = difflib.get_close_matches(line[0], commands, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown command {line[0]!r}; {guess}There are: {', '.join(commands)}")
    return True


def overview(program: str, about: str, commands: Commands) -> str:
    """What a program can do."""
    width = 2 + max(map(len, commands))
    rows = [f"  {name:<{width}}{_help(entry)}" for name, entry in commands.items()]
    more = ["", "COMMAND --help says more.", f"{program} --version says which release this is."]
    return named("\n".join([f"usage: {program} COMMAND ...", "", about, "", *rows, *more]))


def load(entry: "str | Commands") -> Any:  # noqa: ANN401
    """Import a command, or all commands below one."""
    if not isinstance(entry, str):
        return {name: inner if name == "_help" else load(inner) for name, inner in entry.items()}
    module, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _help(entry: "str | Commands") -> str:
    """First line of a function's docstring; of something else, what its module says about itself."""
    if not isinstance(entry, str):
        return str(entry["_help"])
    module, _, attribute = entry.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    text = (ast.get_docstring(tree) or "").partition("\n")[0].rpartition("``: ")[2]
    return text[:1].upper() + text[1:]
