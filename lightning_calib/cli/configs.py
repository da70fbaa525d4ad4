"""Config files: those of the package, and those of earlier versions."""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import lightning_calib
from lightning_calib.datasets.registry import current_class_paths

CONFIGS = Path(lightning_calib.__file__).parent / "configs"


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


@cache
def read_older_configs() -> None:
    """Let parsers take configs of earlier versions, too."""
    import yaml
    from jsonargparse import get_loader, set_loader

    load = get_loader("yaml")
    set_loader("yaml", lambda text: current_class_paths(load(text)), (yaml.YAMLError,))
