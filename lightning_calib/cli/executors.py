"""``--executor``: its name, its options one by one, and what the help says about them."""

from typing import Any

from jsonargparse import ArgumentParser

from lightning_calib.cli.plain_help import PlainHelp
from lightning_calib.executors.base import COMMON, EXECUTORS

EXECUTOR = "--executor"


def executor_action(kind: type[Any]) -> type[Any]:
    """The action of jsonargparse for a name or a mapping, which puts names and single options together.

    ``--executor ray --executor.gpus 1`` is ``{"name": "ray", "gpus": 1}``, in any order, and also where a config file
    says one part and the command line the other.
    """

    class ExecutorAction(kind):  # type: ignore[misc]  # a class of jsonargparse's
        def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as the parent has it
            if not args:
                return super().__call__(*args, **options)
            _, chosen, given, option = args
            before = chosen.get(self.dest)
            if option == EXECUTOR and isinstance(before, dict) and isinstance(given, str):
                chosen.update(before | {"name": given}, self.dest)
                return None
            if option != EXECUTOR and isinstance(before, str):
                chosen.update({"name": before}, self.dest)
            return super().__call__(*args, **options)

    return ExecutorAction


def executors_help() -> str:
    """The options of every executor that has any."""
    parts = []
    for name in EXECUTORS:
        parser = ArgumentParser(usage="", add_help=False, formatter_class=PlainHelp)
        parser.add_class_arguments(EXECUTORS[name], "executor", skip=set(COMMON), instantiate=False)
        _, _, options = parser.format_help().partition("--executor CONFIG")
        listed = options.partition("\n")[2]
        if listed:
            parts.append(f"\nOptions of --executor {name}:\n{listed.rstrip()}\n")
    return "".join(parts)
