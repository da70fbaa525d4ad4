"""What happens on a node of a Ray cluster: a job, its log, and a note on who does it."""

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import lightning_calib
from lightning_calib.executors.base import attempt
from lightning_calib.executors.logs import into_file, speak_plainly, tail
from lightning_calib.kit.registry import import_modules

SOURCE = Path(lightning_calib.__file__).parents[1]  # also where the package is not installed
PLACE = "LIGHTNING_CALIB_PLACE"  # environment variable: the folder that the driver is in
_PLACES = "lightning_calib"  # namespace of the cluster's key-value store: who does what


def python_path(environ: Mapping[str, str]) -> str:
    """``PYTHONPATH`` by which other processes import this package and what lies beside it."""
    return os.pathsep.join(filter(None, [str(SOURCE), environ.get("PYTHONPATH")]))


def do_job(context: tuple[Any, int, list[str], Callable[[], None] | None], job: Any, run: str, number: int) -> Any:  # noqa: ANN401
    """Do a job as a task of Ray; its error or None, the end of its log, and the node."""
    import ray

    work, threads, modules, start = context
    here = ray.get_runtime_context().get_node_id()
    _note(run, number, here)
    path = _log_path(run, number)
    _speak_plainly()
    try:
        with into_file(path):
            error = _prepare(threads, tuple(modules), start) or attempt(work, job)
        return error, tail(path), here
    finally:
        path.unlink(missing_ok=True)
        _forget(run, number)


@cache
def _speak_plainly() -> None:
    speak_plainly()


@cache
def _prepare(threads: int, modules: tuple[str, ...], start: Callable[[], None] | None) -> str | None:
    """Make a process ready for jobs, once; what went wrong, or None."""
    import torch

    if (place := Path(os.environ.get(PLACE, ""))).is_dir():  # paths of jobs may be relative
        os.chdir(place)
    torch.set_num_threads(threads)
    broken = attempt(import_modules, list(modules))
    if start is not None:
        start()
    return broken


def _log_path(run: str, number: int) -> Path:
    return Path(tempfile.gettempdir()) / f"lightning_calib-{run}-{number}.log"


def read_log(run: str, number: int) -> str:
    """The end of the log of a job whose process died on this node."""
    path = _log_path(run, number)
    found = tail(path)
    path.unlink(missing_ok=True)
    return found


def _note(run: str, number: int, node: str) -> None:
    """Say that this node does a job; one key holds both, so that one question finds all."""
    from ray.experimental.internal_kv import _internal_kv_put

    _forget(run, number)
    _internal_kv_put(f"{run}:{number}:{node}", b"", namespace=_PLACES)


def _forget(run: str, number: int) -> None:
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(f"{run}:{number}:", del_by_prefix=True, namespace=_PLACES)


def work_place(run: str, number: int | None = None) -> dict[int, str]:
    """Which node does which job of a run, by number; those of one job with ``number``."""
    from ray.experimental.internal_kv import _internal_kv_list

    prefix = f"{run}:" if number is None else f"{run}:{number}:"
    keys = [key.decode().split(":") for key in _internal_kv_list(prefix, namespace=_PLACES)]
    return {int(number): node for _, number, node in keys}
