"""An experiment on a Ray cluster: the same bytes as on one machine, whatever is lost on the way."""

import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightning_calib.executors.local import LocalExecutor
from lightning_calib.executors.ray import RayExecutor
from tests.executors.clusters import NODE, cluster, persist
from tests.experiment.ambush import KINDS, SETTINGS
from tests.experiment.settings import run_small
from tests.experiment.synthetic import write_outputs
from tests.experiment.test_run import assert_same_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason='needs pip install "lightning-calib[ray]"'),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two_nodes():
    """Two nodes of one CPU, and a head that does no jobs."""
    with cluster(3, head_cpus=0) as made:
        yield made


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return write_outputs(tmp_path_factory.mktemp("cluster") / "outputs", cases=12).path


@pytest.fixture(scope="module")
def expected(outputs):
    """The experiment on this machine, one job after the other."""
    run_small(outputs, outputs.parent / "expected", executor=LocalExecutor(1), **SETTINGS)
    return outputs.parent / "expected"


@pytest.fixture
def cold(outputs, expected):
    """Outputs without pooled maps, so that these are made again."""
    shutil.rmtree(outputs / "cache")
    return outputs


def test_two_processes_leave_the_same_bytes(cold, expected, tmp_path):
    run_small(cold, tmp_path / "c", executor=LocalExecutor(2), **SETTINGS)
    assert_same_files(tmp_path / "c", expected)


def test_a_ray_of_our_own_leaves_the_same_bytes(cold, expected, tmp_path):
    results = run_small(cold, tmp_path / "c", executor={"name": "ray"}, workers=2, **SETTINGS)
    assert results.failures == []
    assert_same_files(tmp_path / "c", expected)


def test_two_nodes_leave_the_same_bytes(two_nodes, cold, expected, tmp_path):
    executor = RayExecutor(two_nodes.address)
    assert executor.slots == 2
    run_small(cold, tmp_path / "c", executor=executor, **SETTINGS)
    assert_same_files(tmp_path / "c", expected)


def ambushed(address, outputs, folder, *marks):
    """A run in another process that is in for bad luck."""
    line = [sys.executable, "-m", "tests.experiment.ambush", address, outputs, folder, *marks]
    return subprocess.Popen(list(map(str, line)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_run_that_loses_five_nodes_leaves_the_same_bytes(two_nodes, cold, expected, tmp_path):
    marks, lost = tmp_path / "marks", 0
    marks.mkdir()
    run = ambushed(two_nodes.address, cold, tmp_path / "c", marks)
    while run.poll() is None:
        for node in [node for node in two_nodes.worker_nodes if node.dead_processes()]:
            lost += 1
            two_nodes.remove_node(node, allow_graceful=False)
            persist(lambda: two_nodes.add_node(**NODE))
        time.sleep(0.1)
    assert run.returncode == 0, run.stderr.read()
    run.communicate()
    assert {path.name for path in marks.iterdir()} == set(KINDS)
    assert lost == len(KINDS)
    assert_same_files(tmp_path / "c", expected)


def test_a_driver_that_is_killed_five_times_leaves_the_same_bytes(two_nodes, cold, expected, tmp_path):
    run = ambushed(two_nodes.address, cold, tmp_path / "c")
    told, errors = run.communicate()
    assert run.returncode == 0, errors
    assert int(told.splitlines()[-1]) == len(KINDS)
    assert_same_files(tmp_path / "c", expected)
