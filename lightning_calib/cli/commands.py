"""The commands of a program: where each is, and its short help, which nothing heavy is imported for."""

import difflib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_calib import __version__
from lightning_calib.cli.errors import corrected
from lightning_calib.cli.signatures import described, parameters
from lightning_calib.kit.program import named

HELP, HELP_ALL = ("-h", "--help"), "--help-all"


@dataclass(frozen=True)
class Command:
    """One command, as the help shows it.

    Attributes:
        place: ``module:function``, or ``module:COMMANDS`` for a dictionary that its module makes.
        group: heading that the overview lists it under; none for what is left out.
        options: what the short help lists, by name.
        rest: ``module:object`` whose parameters stand for the function's ``**`` parameter.
        told: further lines of the short help, option and explanation.
        examples: lines that work, without the name of the program.
        former: the command that does the work now, where this one is an old name.
    """

    place: str
    group: str = ""
    options: tuple[str, ...] = ()
    rest: str = ""
    told: tuple[tuple[str, str], ...] = ()
    examples: tuple[str, ...] = ()
    former: str = ""


@dataclass(frozen=True)
class Family:
    """Commands below a command.

    Attributes:
        about: one line on them.
        members: the commands.
        group: heading that the overview lists them under.
    """

    about: str
    members: Mapping[str, Command]
    group: str = ""


Commands = Mapping[str, Command | Family]


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
    elif line and line[0] in (*HELP, HELP_ALL):
        print(overview(program, about, commands))
    elif not line:
        raise ValueError(f"no command\n{overview(program, about, commands)}")
    elif line[0] in commands or line[0].startswith("-"):
        return _explained(program, commands, line)
    else:
        near = difflib.get_close_matches(line[0], commands, n=1)
        meant = [getattr(commands[name], "former", "") or name for name in near]
        guess = f"; did you mean {meant[0]}?\ntry: {corrected({line[0]: meant[0].split()[0]})}" if meant else ""
        raise ValueError(f"unknown command {line[0]!r}{guess}\nThere are: {', '.join(_listed(commands))}")
    return True


def _explained(program: str, commands: Commands, line: Sequence[str]) -> bool:
    """Print the short help of a command where the line asks for it; False where it does not."""
    words = [word for word in line if not word.startswith("-")]
    if not any(word in HELP for word in line) or not words:
        return False
    entry, name = commands.get(words[0]), words[0]
    if isinstance(entry, Family):
        if len(words) < 2:
            print(overview(f"{program} {name}", entry.about, entry.members))
            return True
        entry, name = entry.members.get(words[1]), " ".join(words[:2])
    if not isinstance(entry, Command) or not entry.examples:
        return False
    print(short_help(f"{program} {name}", entry))
    return True


def full_help(line: Sequence[str]) -> list[str]:
    """The line as the parser of a command takes it: ``--help-all`` is its ``--help``."""
    return ["--help" if word == HELP_ALL else word for word in line]


def short_help(name: str, command: Command) -> str:
    """What a command does, the options that most people need, and examples."""
    found = (parameters(command.rest) if command.rest else {}) | parameters(command.place)
    chosen = {option: found[option] for option in command.options}
    rows = {f"--{option}": str(parameter) for option, parameter in chosen.items()} | dict(command.told)
    width = 2 + max(map(len, rows))
    needed = "".join(f" --{option} {option.upper()}" for option, parameter in chosen.items() if parameter.required)
    lines = [f"usage: {name}{needed} [options]", "", described(command.place), ""]
    lines += [wrapped for option, text in rows.items() for wrapped in _row(option, text, width)]
    program = name.split()[0]
    lines += ["", "examples:", *(f"  {program} {example}" for example in command.examples)]
    return named("\n".join([*lines, "", f"{name} {HELP_ALL} lists every option."]))


def _row(option: str, text: str, width: int) -> Iterator[str]:
    """One option, wrapped at 100 columns."""
    import textwrap

    first, *rest = textwrap.wrap(text, 100 - width) or [""]
    yield f"  {option:<{width}}{first}"
    yield from (f"  {'':<{width}}{line}" for line in rest)


def _listed(commands: Commands) -> list[str]:
    """Names of the commands, without the old ones."""
    return [name for name, entry in commands.items() if isinstance(entry, Family) or not entry.former]


def overview(program: str, about: str, commands: Commands) -> str:
    """What a program can do, by groups."""
    names = _listed(commands)
    width = 2 + max(map(len, names))
    lines = [f"usage: {program} COMMAND ...", "", about]
    for group in dict.fromkeys(commands[name].group for name in names):
        lines += ["", *([f"{group}:"] if group else [])]
        lines += [f"  {name:<{width}}{_about(commands[name])}" for name in names if commands[name].group == group]
    more = [f"{program} COMMAND --help explains a command.", f"{program} --version names the release."]
    return named("\n".join([*lines, "", *more[: 1 if " " in program else 2]]))


def _about(entry: Command | Family) -> str:
    return entry.about if isinstance(entry, Family) else described(entry.place)


def load(entry: Command | Family) -> Any:  # noqa: ANN401
    """Import a command, or all commands below one; an old name says which is the new one."""
    if isinstance(entry, Family):
        return {"_help": entry.about, **{name: load(inner) for name, inner in entry.members.items()}}
    if entry.former:
        print(
            named(f"this is an old name, which still works; the new one is `calibrate.py {entry.former}`"),
            file=sys.stderr,
        )
    module, _, attribute = entry.place.partition(":")
    return getattr(importlib.import_module(module), attribute)
