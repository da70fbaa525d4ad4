"""Members that train on a Ray cluster, one of whose nodes is lost on the way."""

from importlib.util import find_spec

import pytest
import torch

from tests.executors.clusters import cluster
from tests.training import tiny_config, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason='needs pip install "lightning-calib[ray]"'),
]


def weights(config):
    """What a member has learned."""
    checkpoint = config.parent / "runs" / "tiny" / "members" / "0" / "checkpoints" / "last.ckpt"
    return torch.load(checkpoint, weights_only=True)["state_dict"]


def test_a_member_whose_node_is_lost_goes_on_elsewhere_to_the_same_weights(tmp_path):
    calm = tiny_config(tmp_path / "calm", epochs=3)
    train("ensemble", calm, "--members", "1")
    flag = tmp_path / "flag"
    lost = {"class_path": "tests.training.LoseNode", "init_args": {"epoch": 1, "flag": str(flag)}}
    config = tiny_config(tmp_path / "lost", epochs=3, callbacks=[lost])
    with cluster(3, head_cpus=0) as made:
        address = ("--executor", "ray", "--executor.address", made.address)
        train("ensemble", config, "--members", "1", *address)
        assert sum(bool(node.dead_processes()) for node in made.worker_nodes) == 1
    assert flag.exists()
    expected, found = weights(calm), weights(config)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
