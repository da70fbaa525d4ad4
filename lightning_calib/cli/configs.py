"""Config files: those of the package, and those of earlier versions."""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lightning_calib

CONFIGS = Path(lightning_calib.__file__).parent / "configs"
_MOVED = {"lightning_calib.data.": "lightning_calib.datasets."}


def with_packaged(line: Sequence[str], folder: str = "") -> list[str]:
    """The command line, with a file of the package where ``--config`` names one that is not here.

    Args:
        line: the command line.
        folder: where a program's files are, below the package's configs.
    """
    found = list(line)
    for place, word in enumerate(line):
        option, _, value = word.partition("=")
        if option in ("-c", "--config"):
            if value:
                found[place] = f"{option}={_resolved(value, folder)}"
            elif place + 1 < len(line):
                found[place + 1] = _resolved(line[place + 1], folder)
    return found


def _resolved(name: str, folder: str) -> str:
    packaged = CONFIGS / folder / Path(name).name
    known = {Path(), Path("configs"), Path("configs") / folder}
    if Path(name).exists() or Path(name).parent not in known or not packaged.is_file():
        return name
    print(f"{name} is not here; taking {packaged}", file=sys.stderr)
    return str(packaged)


def current(value: Any) -> Any:  # noqa: ANN401
    """A config in which classes are named by where they are now.

    Example:
        >>> current({"data": {"class_path": "lightning_calib.data.shapes.Shapes"}})
        {'data': {'class_path': 'lightning_calib.datasets.shapes.Shapes'}}
    """
    if isinstance(value, dict):
        return {key: current(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [current(inner) for inner in value]
    if isinstance(value, str):
        for before, now in _MOVED.items():
            value = value.replace(before, now, 1) if value.startswith(before) else value
    return value


@cache
def read_older_configs() -> None:
    """Let parsers take configs of earlier versions, too."""
    import yaml
    from jsonargparse import get_loader, set_loader

    load = get_loader("yaml")
    set_loader("yaml", lambda text: current(load(text)), (yaml.YAMLError,))
