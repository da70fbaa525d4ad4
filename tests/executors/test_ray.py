"""Jobs on a real Ray cluster of two nodes: deaths, lost nodes, killed drivers, interrupts, the same store."""

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from lightning_calib.cli.errors import INTERRUPTED
from lightning_calib.executors.base import ExecutorError
from lightning_calib.executors.cluster import run_on
from lightning_calib.executors.ray import RayExecutor
from tests.executors.clusters import NODE, cluster, persist, until
from tests.executors.jobs import sleep, speak, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason='needs pip install "lightning-calib[ray]"'),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two_nodes():
    with cluster(2) as made:
        yield made


def drive(address, folder, work, count):
    """Another process that has jobs done."""
    line = [sys.executable, "-m", "tests.executors.driver", address, str(folder), work, str(count)]
    return subprocess.Popen(
        line,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run in the background
    )


def test_deaths_and_failures_are_reported_with_their_logs_and_the_others_finish(two_nodes, tmp_path, capfd):
    names = ["a", "killed", "b", "refused", "greedy", "c"]
    with RayExecutor(two_nodes.address, retries=2, threads=2, cpus=1) as executor:
        assert executor.slots == 2
        found = {outcome.job: outcome for outcome in executor.run(names, partial(speak, tmp_path))}
    assert {name for name, outcome in found.items() if outcome.error is None} == {"a", "b", "c"}
    assert (tmp_path / "killed.attempts").read_text() == "xxx"
    assert "in each of 3 attempts" in found["killed"].error
    assert "killed begins" in found["killed"].error
    assert found["refused"].error.startswith("ValueError: refused for good reasons")
    assert (tmp_path / "refused.attempts").read_text() == "x"
    assert "can't allocate memory" in found["greedy"].error
    assert "greedy begins" in found["greedy"].log
    assert (tmp_path / "a.txt").read_text() == "2 2"
    assert all(outcome.node for outcome in found.values())
    captured = capfd.readouterr()
    assert captured.out == ""  # what programs read
    assert captured.err.count("UserWarning: the same for all") == 1
    assert captured.err.count("c begins") == 1
    assert captured.err.count("killed: its worker died") == 2


def test_paths_begin_where_the_driver_is(two_nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RayExecutor(two_nodes.address) as executor:
        (outcome,) = executor.run(["a"], partial(speak, Path(".")))
    assert outcome.error is None
    assert (tmp_path / "a.txt").is_file()


def test_a_lost_node_takes_no_job_with_it(two_nodes, tmp_path):
    doomed = persist(lambda: two_nodes.add_node(**NODE))
    jobs = [0, 1, 2, 3]
    seen = {}

    def remove_once_all_work():
        until(lambda: doomed.node_id in {path.read_text() for path in tmp_path.glob("*.on")})
        seen.update(executor.doing())
        two_nodes.remove_node(doomed, allow_graceful=False)
        (tmp_path / "go").touch()

    with RayExecutor(two_nodes.address) as executor:
        assert executor.slots == 3
        remover = threading.Thread(target=remove_once_all_work)
        remover.start()
        outcomes = list(executor.run(jobs, partial(wait_for, tmp_path)))
        remover.join()
    assert sorted(outcome.job for outcome in outcomes) == jobs
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert [(tmp_path / f"{job}.txt").read_text() for job in jobs] == [f"result {job}" for job in jobs]
    assert any(doomed.node_id.startswith(name.rpartition("/")[2]) for name in seen)
    assert doomed.node_id not in {(tmp_path / f"{job}.on").read_text() for job in jobs}


def test_nothing_goes_on_when_the_driver_is_killed(two_nodes, tmp_path):
    driver = drive(two_nodes.address, tmp_path, "scribble", 2)
    try:
        until(
            lambda: all((tmp_path / f"{job}.child").exists() and (tmp_path / f"{job}.pids").exists() for job in (0, 1))
        )
        pids = [int(pid) for job in (0, 1) for pid in until((tmp_path / f"{job}.pids").read_text).split()]
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        driver.kill()
        driver.communicate()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_an_interrupt_cancels_the_jobs(two_nodes, tmp_path):
    driver = drive(two_nodes.address, tmp_path, "sleep", 3)
    try:
        pids = [
            int(until(lambda job=job: (tmp_path / f"{job}.on").exists() and (tmp_path / f"{job}.on").read_text()))
            for job in (0, 1)
        ]
        driver.send_signal(signal.SIGINT)
        _, told = driver.communicate(timeout=900)
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == INTERRUPTED, told
    assert told.strip().splitlines() == [
        "interrupted; run the same line again: what is finished stays, the rest goes on"
    ]
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert not (tmp_path / "2.on").exists()


def test_nodes_that_see_the_folders_pass_and_nothing_stays_behind(two_nodes, tmp_path):
    with RayExecutor(two_nodes.address) as executor:
        executor.check([tmp_path / "new", tmp_path])
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert list((tmp_path / "new").iterdir()) == []


def test_a_node_that_has_gone_is_no_problem(two_nodes):
    with RayExecutor(two_nodes.address) as executor:
        here, *_ = executor._nodes()
        gone = replace(here, id="ab" * 28)
        answers = run_on([gone, here], os.getpid, {}, 60)
    assert [(answer.node, answer.problem) for answer in answers] == [(here, None)]


@pytest.fixture
def blind_node(two_nodes, tmp_path):
    """A node with a view of its own: another folder is mounted over one, and the other is read-only."""
    hidden, fixed = tmp_path / "hidden", tmp_path / "fixed"
    for folder in (hidden, fixed):
        folder.mkdir()
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mount namespaces need rights that are not granted here")
    ray = Path(sys.executable).parent / "ray"
    start = f"{ray} start --address {two_nodes.address} --num-cpus 1 --object-store-memory 100000000 --block"
    mounts = f"mount -t tmpfs none {hidden} && mount --bind {fixed} {fixed} && mount -o remount,ro,bind {fixed}"
    line = ["unshare", "-m", "sh", "-c", f"{mounts} && exec {sys.executable} {start}"]
    with (tmp_path / "node.log").open("w") as log:
        process = subprocess.Popen(line, start_new_session=True, stdout=log, stderr=log)
    try:
        yield hidden, fixed
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        print((tmp_path / "node.log").read_text())


def test_a_node_that_does_not_share_the_store_is_named(blind_node, two_nodes, tmp_path):
    hidden, fixed = blind_node
    with RayExecutor(two_nodes.address) as executor:
        until(lambda: len(executor._nodes()) == 3)
        names = {node.name for node in executor._nodes()}
        with pytest.raises(ExecutorError, match=f"does not see {hidden}") as unseen:
            executor.check([hidden])
        with pytest.raises(ExecutorError, match=f"cannot write to {fixed}: Read-only") as unwritten:
            executor.check([fixed])
    for problem in (unseen, unwritten):
        (told,) = re.findall(r"- node (\S+) ", str(problem.value))
        assert told in names
    assert list(hidden.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_without_a_server_is_refused_at_once(address, tmp_path):
    with RayExecutor(address) as executor, pytest.raises(ExecutorError, match=f"no Ray answers at {address}"):
        executor.check([tmp_path])


def test_an_address_that_is_none_is_refused(tmp_path):
    with RayExecutor("cluster7") as executor, pytest.raises(ExecutorError, match="write auto, host:6379 or ray://"):
        next(executor.run([1], print))


def test_a_job_that_no_node_can_hold_is_refused(two_nodes):
    told = "no node of the Ray cluster has 1 CPUs and 1 GPUs"
    with RayExecutor(two_nodes.address, gpus=1) as executor, pytest.raises(ExecutorError, match=told):
        next(executor.run([1], print))


def test_a_cluster_of_another_version_is_refused(two_nodes, tmp_path):
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    key = {"namespace": "cluster"}
    with RayExecutor(two_nodes.address) as executor:
        executor._connect()
        facts = _internal_kv_get("CLUSTER_METADATA", **key)
        other = re.sub(rb'"ray_version": "[^"]*"', b'"ray_version": "2.9.3"', facts)
        assert other != facts
        _internal_kv_put("CLUSTER_METADATA", other, **key)
        try:
            driver = drive(two_nodes.address, tmp_path, "sleep", 1)
            _, told = driver.communicate(timeout=900)
        finally:
            _internal_kv_put("CLUSTER_METADATA", facts, **key)
    assert driver.returncode == 2
    assert told.startswith(f"error: the Ray cluster at {two_nodes.address} has other versions")
    assert "2.9.3" in told
    assert "Traceback" not in told


def test_what_the_memory_monitor_kills_is_not_tried_for_ever(two_nodes, tmp_path, monkeypatch):
    """On a node that counts any use of memory as too much, Ray kills every job; by itself it would go on for ever."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.0")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    tight = persist(lambda: two_nodes.add_node(**(NODE | {"num_cpus": 2})))
    try:
        with RayExecutor(two_nodes.address, cpus=2, retries=1) as executor:  # no other node has two
            (outcome,) = executor.run([0], partial(sleep, tmp_path))
    finally:
        two_nodes.remove_node(tight, allow_graceful=False)
    assert outcome.error.startswith(
        "OutOfMemoryError in each of 2 attempts: 1 worker(s) were killed due to the node running"
    )


def test_what_a_script_registers_itself_is_refused_before_anything_starts(two_nodes):
    line = [sys.executable, "-m", "tests.executors.script", two_nodes.address]
    done = subprocess.run(line, cwd=ROOT, check=False, capture_output=True, text=True)
    assert "put that into a module which they can import" in done.stderr
