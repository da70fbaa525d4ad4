"""Two processes give the figures of one, also where a case is seen twice or a process sees none."""

import json
import socket

import pytest
import torch

from tests.metrics import workers

SPLITS = {
    "even": ([0, 2, 4], [1, 3]),
    "padded": ([4, 1], [3, 2, 0, 4]),  # case 4 twice, as a distributed sampler pads
    "idle": ([0, 1, 2, 3, 4], []),
    "blind": ([0, 1, 2, 3, 4], [5]),  # nothing counts in case 5
}


@pytest.fixture(scope="module")
def single():
    metrics = workers.collection()
    for case in workers.cases():
        workers.add(metrics, case)
    return workers.results(metrics)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What each of two processes computed."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(workers.run_process, (port, str(folder), SPLITS), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("split", SPLITS)
def test_two_processes_give_the_result_of_one(single, pair, split):
    assert pair[0][split] == single
    assert pair[1][split] == single


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_logging_in_a_lightning_module(tmp_path, single, pair):
    alone = workers.evaluate(tmp_path)
    expected = {name: single["values"][name] for name in ("ece", "nll")}
    assert alone == pytest.approx(expected, rel=1e-6)
    assert pair[0]["lightning"] == pytest.approx(expected, rel=1e-6)
    assert pair[1]["lightning"] == pytest.approx(expected, rel=1e-6)
