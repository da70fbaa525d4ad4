"""Processes of torch.distributed, without Lightning: two of them give the result of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_calib.solvers import ALONE, TorchCollective, fit
from tests.solvers.synthetic import confused, fresh

ROOT = Path(__file__).parents[2]
FITS = {"cms_ap": {}, "ets": {}, "ms": {"solver": "adam", "max_epochs": 5}, "lts_ti": {"max_epochs": 2}}


def run(collective, rank=0):
    """NLL and log-probabilities of each fit; each process has every other image, and a step takes one from each."""
    logits, target = confused(num_classes=3, count=4, size=24)
    found = {}
    for name, options in FITS.items():
        torch.manual_seed(0)  # gates start at random
        calibrator = fresh(name, 3)
        own = range(rank, 4, collective.size)
        parts = [(logits[k : k + 1], target[k : k + 1], [str(k)]) for k in own]
        if name == "ms" and collective is ALONE:  # the same two batches as two processes make together
            parts = [(logits[:2], target[:2], None), (logits[2:], target[2:], None)]
        certificate = fit(calibrator, parts, collective=collective, **options)
        found[name] = {"nll": certificate.nll, "log_probs": calibrator(logits).detach()}
    rows = torch.full((rank + 1, 2), float(rank), dtype=torch.float64)
    return found | {"rows": collective.gather(rows)}


def test_two_processes_give_the_result_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.solvers.test_collective", str(tmp_path)]
    environment = os.environ | common | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pair = [subprocess.Popen(command, cwd=ROOT, env=environment | {"RANK": rank}) for rank in "01"]
    assert [process.wait(200) for process in pair] == [0, 0]
    alone, two = run(ALONE), [torch.load(tmp_path / f"{rank}.pt") for rank in "01"]
    for name in FITS:
        assert torch.equal(two[0][name]["log_probs"], two[1][name]["log_probs"])
        assert two[0][name]["nll"] == pytest.approx(alone[name]["nll"], abs=1e-6)
        assert (two[0][name]["log_probs"] - alone[name]["log_probs"]).abs().max() < 1e-6
    assert two[1]["rows"].tolist() == [[0, 0], [1, 1], [1, 1]]


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    number = torch.distributed.get_rank()
    torch.save(run(TorchCollective(), number), Path(sys.argv[1]) / f"{number}.pt")
    torch.distributed.destroy_process_group()  # threads of gloo that outlive the interpreter may end it by SIGABRT
