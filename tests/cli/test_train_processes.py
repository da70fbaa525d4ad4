"""train.py as processes: killed at several points, and distributed over two."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lightning_calib.outputs.store import OutputStore
from tests.training import explosion, file_bytes, tiny_config, train

ROOT = Path(__file__).parents[2]
PATIENCE = 240  # seconds; a busy machine is slow


def start(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    return output


def kill_when(process, condition):
    """SIGKILL, as the out-of-memory killer or a scheduler sends it."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two members, trained in this process, and one-process outputs of 60 cases."""
    folder = tmp_path_factory.mktemp("trained")
    config = tiny_config(folder, epochs=1, pool=60)
    for seed in (0, 1):
        train("fit", config, "--seed_everything", seed)
    train("predict", config)
    return config


def test_predict_killed_twice_ends_in_the_same_bytes(trained):
    outputs = trained.parent / "runs" / "tiny" / "outputs"
    whole = file_bytes(outputs)
    outputs.rename(outputs.with_name("expected"))
    try:
        for enough in (3, 25):
            process = start("predict", "--config", trained)
            kill_when(process, lambda enough=enough: len(list((outputs / "cases").glob("*.safetensors"))) >= enough)
            assert not (outputs / "manifest.json").exists()
        train("predict", trained)
        assert file_bytes(outputs) == whole
        OutputStore(outputs).verify()
    finally:
        outputs.with_name("expected").rename(trained.parent / "runs" / "tiny" / "first_outputs")


def test_two_processes_predict_what_one_does(trained):
    run = trained.parent / "runs" / "tiny"
    expected = OutputStore(run / ("outputs" if (run / "outputs").exists() else "first_outputs"))
    two = trained.parent / "two" / "tiny"
    two.mkdir(parents=True)
    (two / "members").symlink_to(run / "members")
    ddp = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    finish(start("predict", "--config", trained, "--runs_dir", two.parent, *ddp))
    found = OutputStore(two / "outputs")
    found.verify()
    assert found.case_ids == expected.case_ids
    for case in found:
        assert torch.allclose(case.logits, expected[case.case_id].logits, atol=1e-5)
        assert torch.equal(case.target, expected[case.case_id].target)


def test_two_processes_fit_one_member(tmp_path):
    config = tiny_config(tmp_path)
    output = finish(start("fit", "--config", config, "--trainer.devices", "2", "--trainer.strategy", "ddp"))
    assert "distributed_backend=gloo" in output
    member = tmp_path / "runs" / "tiny" / "members" / "0"
    assert json.loads((member / "finished.json").read_text())["steps"] == 2  # each process has half of the samples
    state = torch.load(member / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(value.isfinite().all() for value in state.values())


def test_an_ensemble_killed_twice_is_finished_by_the_third_run(tmp_path, capsys):
    config = tiny_config(tmp_path, epochs=40)
    members = tmp_path / "runs" / "tiny" / "members"

    def epoch(seed):
        progress = members / str(seed) / "progress.json"
        return json.loads(progress.read_text())["epoch"] if progress.exists() else 0

    command = ["ensemble", "--config", config, "--members", "2", "--parallel"]
    kill_when(start(*command, 1), lambda: epoch(0) >= 2)  # in the first member
    first_kill = epoch(0)
    kill_when(start(*command, 1), lambda: epoch(1) >= 2)  # in the second one
    assert (members / "0" / "finished.json").exists()
    finished = (members / "0" / "checkpoints" / "last.ckpt").read_bytes()
    train("ensemble", config, "--members", "2")
    assert "member 0" not in capsys.readouterr().out
    assert (members / "0" / "checkpoints" / "last.ckpt").read_bytes() == finished
    assert "Restor" in (members / "0" / "train.log").read_text()
    straight = tiny_config(tmp_path / "straight", epochs=40)
    for seed in (0, 1):
        train("fit", straight, "--seed_everything", seed)
        states = [
            torch.load(runs / "tiny" / "members" / str(seed) / "checkpoints" / "last.ckpt", weights_only=True)
            for runs in (tmp_path / "runs", tmp_path / "straight" / "runs")
        ]
        for name, value in states[0]["state_dict"].items():
            assert torch.allclose(value, states[1]["state_dict"][name], atol=1e-5)
    assert 2 <= first_kill < 40
    train("predict", config)
    assert OutputStore(tmp_path / "runs" / "tiny" / "outputs").manifest.num_members == 2


def test_a_failed_member_is_reported_and_the_exit_code_says_so(tmp_path):
    config = tiny_config(tmp_path, callbacks=[explosion(tmp_path / "flag", 0)])  # the first one fails
    with pytest.raises(SystemExit) as caught:
        train("ensemble", config, "--members", "2", "--parallel", "1")
    assert "1 of 2 members failed" in caught.value.code  # a text as code: printed, and 1 for the shell
    assert "the crash of this test" in caught.value.code
    members = tmp_path / "runs" / "tiny" / "members"
    assert not (members / "0" / "finished.json").exists()
    assert (members / "1" / "finished.json").exists()
    assert (members / "1" / "logs" / "csv" / "version_0" / "metrics.csv").exists()
    assert list((members / "1" / "logs" / "tensorboard").rglob("events*"))
