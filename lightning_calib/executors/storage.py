"""The check before anything starts: all nodes see the same folders, and have the same versions."""

import platform
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import lightning_calib
from lightning_calib.executors.base import ExecutorError
from lightning_calib.executors.cluster import Answer

_PATIENCE = 5.0  # seconds that a file may need from one node of a shared file system to another
_PAUSE = 0.1


def check_folders(folders: Sequence[Path], ask: Callable[[Callable[[], str | None]], list[Answer[str | None]]]) -> None:
    """Make sure that nodes see the folders that are seen here.

    A token is written here and read on every node, which writes another one that is read here: a folder of the same
    name on the node's own disk does not pass.

    Args:
        folders: what they are to see; made where missing.
        ask: does a small piece of work on every node.

    Raises:
        ExecutorError: naming the nodes that do not, and why.
    """
    token = f".node-check-{uuid.uuid4().hex}"
    places = [folder.resolve() for folder in folders]
    try:
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
            (place / token).write_text(token, encoding="utf-8")
        found = ask(partial(look, places, token, versions()))
        wrong = {answer.node.name: answer.problem or answer.value or unread(places, token, answer) for answer in found}
    finally:
        for place in places:
            for path in place.glob(f"{token}*"):
                path.unlink(missing_ok=True)
    problems = [f"- node {name} {problem}" for name, problem in wrong.items() if problem]
    if problems:
        raise ExecutorError("\n".join(["not all nodes of the cluster can do the work:", *problems]))


def versions() -> dict[str, str]:
    """What must be the same on all nodes for the same results."""
    return {
        "Python": platform.python_version(),
        "torch": version("torch").partition("+")[0],
        "lightning_calib": lightning_calib.__version__,
    }


def look(places: Sequence[Path], token: str, expected: Mapping[str, str]) -> str | None:
    """On a node: what is wrong with it, or None."""
    import ray

    for name, wanted in expected.items():
        if (have := versions()[name]) != wanted:
            return f"has {name} {have}, this machine has {wanted}: install the same versions"
    for place in places:
        if not _appears(place / token):
            return f"does not see {place}: put it on a file system that all nodes share"
        try:
            (place / f"{token}-{ray.get_runtime_context().get_node_id()}").write_text(token, encoding="utf-8")
        except OSError as problem:
            return f"cannot write to {place}: {problem.strerror}"
    return None


def unread(places: Sequence[Path], token: str, answer: Answer[str | None]) -> str | None:
    """Here: the folder to which a node wrote without effect, in words, or None."""
    lost = [place for place in places if not _appears(place / f"{token}-{answer.node.id}")]
    return f"writes to another {lost[0]} than this machine" if lost else None


def _appears(path: Path) -> bool:
    """Whether a file is there, or soon will be."""
    end = time.monotonic() + _PATIENCE
    while not path.is_file():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
    return True
