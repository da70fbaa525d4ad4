"""Ray clusters for tests: several nodes on this machine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_calib.executors.cluster import set_defaults

NODE = {"num_cpus": 1, "object_store_memory": 100 * 10**6}


@contextmanager
def cluster(nodes: int = 2, head_cpus: int = 1) -> Iterator[Any]:
    """A cluster of nodes with one CPU each, the first one its head; one without a CPU does no jobs."""
    set_defaults()
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        persist(lambda: made.add_node(**(NODE | {"num_cpus": head_cpus}), include_dashboard=False))
        for _ in range(nodes - 1):
            persist(lambda: made.add_node(**NODE))
        yield made
    finally:
        made.shutdown()


def persist(start, attempts: int = 3):
    """Start a node; Ray itself gives up where the machine is so busy that one takes more than 15 s."""
    try:
        return start()
    except Exception:
        if attempts == 1:
            raise
        return persist(start, attempts - 1)


def until(condition, seconds: float = 900.0):
    """What a condition gives once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")
