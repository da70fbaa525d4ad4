"""Things by name: ours, registered ones, dotted paths; and in worker processes."""

import subprocess
import sys
from functools import partial

import pytest

from lightning_calib.executors.local import LocalExecutor
from lightning_calib.kit import registry as module
from lightning_calib.kit.registry import Registry

MODULE = """
from pathlib import Path
from lightning_calib.executors.base import EXECUTORS, register_executor

class Mine:
    pass

register_executor("mine", Mine)

def work(folder, job):
    Path(folder, job).write_text(EXECUTORS["mine"].__name__)
"""


@pytest.fixture
def shelf():
    return Registry("sort", "lightning_calib.nothing", {"plain": "builtins:sorted"})


def test_a_name_is_looked_up_among_ours_and_the_registered(shelf):
    shelf.register("own", min)
    assert shelf["plain"] is sorted
    assert shelf["own"] is min
    assert shelf.names() == ("plain", "own")
    assert shelf.name_of(min) == "own"
    assert shelf.name_of(max) is None
    assert "own" in shelf
    assert "other" not in shelf


def test_a_dotted_path_is_imported_and_known_from_then_on(shelf):
    assert "heapq.merge" not in shelf
    assert shelf["heapq.merge"].__name__ == "merge"
    assert "heapq.merge" in shelf


@pytest.mark.parametrize("path", ["heapq.nothing", "no_such_package.Class"])
def test_a_path_that_cannot_be_imported_says_so(shelf, path):
    with pytest.raises(ValueError, match=rf"cannot import the sort {path}.*installed, or on PYTHONPATH"):
        shelf[path]


def test_a_taken_name_is_refused_unless_it_is_the_same_thing(shelf):
    shelf.register("own", min)
    shelf.register("own", min)
    with pytest.raises(ValueError, match="there is a sort 'own' already"):
        shelf.register("own", max)
    with pytest.raises(ValueError, match="there is a sort 'plain' already"):
        shelf.register("plain", max)


def test_a_check_refuses_things_of_another_kind():
    def only_classes(name, thing):
        if not isinstance(thing, type):
            raise ValueError(f"{name} is no class")

    with pytest.raises(ValueError, match="own is no class"):
        Registry("thing", "lightning_calib.nothing", {}, only_classes).register("own", 3)


def test_what_a_module_registered_is_there_in_worker_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MODULES", {})
    (tmp_path / "stranger.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    from stranger import work

    with LocalExecutor(1) as executor:
        (outcome,) = executor.run(["a"], partial(work, str(tmp_path)))
    assert outcome.error is None
    assert (tmp_path / "a").read_text() == "Mine"


def test_a_module_that_workers_cannot_import_fails_their_jobs_with_the_reason(monkeypatch):
    monkeypatch.setattr(module, "_MODULES", {"no_such_module": None})
    with LocalExecutor(1) as executor:
        (outcome,) = executor.run(["a"], print)
    assert "No module named 'no_such_module'" in outcome.error


def test_what_a_prompt_registered_is_refused_for_workers():
    code = (
        "from lightning_calib.executors.base import register_executor\n"
        "from lightning_calib.executors.local import LocalExecutor\n"
        "register_executor('mine', int)\n"
        "list(LocalExecutor(1).run([1], print))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "put it into a module, or do without workers" in found.stderr


def test_the_module_behind_our_own_functions_is_remembered():
    assert "lightning_calib.kit.registry" not in module._MODULES
