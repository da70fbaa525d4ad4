"""Ray clusters for tests: several nodes on this machine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_calib.executors.cluster import set_defaults

NODE = {"num_cpus": 1, "object_store_memory": 100 * 10**6}


@contextmanager
def cluster(nodes: int = 2) -> Iterator[Any]:
    """A cluster of nodes with one CPU each, the first one its head."""
    set_defaults()
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(**NODE)
        yield made
    finally:
        made.shutdown()


def until(condition, seconds: float = 120.0):
    """What a condition gives once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")
