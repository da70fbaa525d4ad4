"""A Ray cluster as executors see it: how to get there, its nodes, and what a job needs of them."""

import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lightning_calib.executors.base import ExecutorError

Value = TypeVar("Value")

_GIGABYTE = 10**9
_REACH_SECONDS = 10.0
_DEFAULTS = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # Ray's threads say nothing on standard output; what matters, we tell
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "5",  # seconds that jobs go on when the process behind ray:// is gone
    "RAY_USAGE_STATS_ENABLED": "0",  # of a cluster that we start: nobody was asked
}
_TOKEN = "\nIf it asks for a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file that holds it."
_STORE_BYTES = 100 * 10**6  # results travel through files; Ray's own store holds next to nothing


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Attributes:
        id: Ray's name for it.
        name: ours, for people: the host, with a number where several nodes share one.
        resources: what it has in all, by Ray's names.
    """

    id: str
    name: str
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Needs:
    """What a job needs of a node: CPUs, GPUs, and memory in GB."""

    cpus: float
    gpus: float = 0.0
    memory: float | None = None

    def options(self) -> dict[str, Any]:
        """As options of a Ray task."""
        bounds = {} if self.memory is None else {"memory": int(self.memory * _GIGABYTE)}
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, **bounds}

    def room(self, node: Node) -> int:
        """Jobs that a node has room for.

        Example:
            >>> Needs(cpus=2, gpus=0.25).room(Node("", "", {"CPU": 32.0, "GPU": 1.0}))
            4
        """
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": (self.memory or 0.0) * _GIGABYTE}
        return min(int(node.resources.get(name, 0.0) / need) for name, need in wanted.items() if need)

    def __str__(self) -> str:
        """In words."""
        parts = [f"{self.cpus:g} CPUs", *([f"{self.gpus:g} GPUs"] if self.gpus else [])]
        return " and ".join([*parts, *([f"{self.memory:g} GB"] if self.memory else [])])


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """What a node said to a question: a value, or a problem in words."""

    node: Node
    value: Value | None = None
    problem: str | None = None


def set_defaults() -> None:
    """Tell Ray by its environment variables what we expect of it; it reads them when it is imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


def connect(address: str | None, needs: Needs, slots: int | None, environment: dict[str, str]) -> Callable[[], None]:
    """Join a cluster, or start one on this machine, and print where its dashboard is.

    Args:
        address: see RayExecutor.
        needs: what a job needs.
        slots: jobs at a time that a cluster of our own must have room for.
        environment: variables of its processes.

    Returns:
        What ends the connection. Where this process was connected before, by hand, it stays so.
    """
    set_defaults()
    try:
        import ray
    except ImportError as problem:
        raise ExecutorError('the executor ray needs Ray: pip install "lightning-calib[ray]"') from problem
    if ray.is_initialized():
        return lambda: None
    own: dict[str, Any] = {"address": address}
    if address is None:
        from lightning_calib.executors.local import available_cores

        cpus = max(available_cores(), (slots or 1) * needs.cpus)
        own = {"address": "local", "num_cpus": int(cpus + 0.999), "object_store_memory": _STORE_BYTES}
        own |= {"include_dashboard": False}
    else:
        _reach(address)
    try:
        context = ray.init(
            **own, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": environment}
        )
    except Exception as problem:  # Ray raises whatever comes to hand
        raise ExecutorError(_refusal(address, problem)) from problem
    if context.dashboard_url:
        print(f"Ray's dashboard: http://{context.dashboard_url}", file=sys.stderr)
    return ray.shutdown


def _reach(address: str) -> None:
    """Refuse at once an address where nobody listens; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ExecutorError(f"address {address!r}: write auto, host:6379 or ray://host:10001")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except OSError as problem:
        raise ExecutorError(
            f"no Ray answers at {address} ({problem.strerror or problem}): is it started there (ray start --head), "
            "and the port right?"
        ) from problem


def _refusal(address: str | None, problem: Exception) -> str:
    """What to tell the user about a cluster that would not have us."""
    text = str(problem).strip()
    if "ersion mismatch" in text or "ersions" in text:
        return f"the Ray cluster at {address} has other versions; install the same here and there.\n{text}"
    if address == "auto":
        return f"no Ray runs on this machine: start it (ray start --head), or leave --executor.address away.\n{text}"
    return f"cannot use Ray at {address or 'this machine'}: {text}{_TOKEN if address else ''}"


def nodes_of() -> list[Node]:
    """The nodes that are alive, in a fixed order."""
    import ray

    known = ray.nodes()  # type: ignore[no-untyped-call]
    alive = sorted((node for node in known if node["Alive"]), key=lambda node: str(node["NodeID"]))
    hosts = Counter(node["NodeManagerHostname"] for node in alive)
    return [
        Node(
            node["NodeID"],
            node["NodeManagerHostname"] if hosts[node["NodeManagerHostname"]] == 1 else _told_apart(node),
            node["Resources"],
        )
        for node in alive
    ]


def _told_apart(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}"


def run_on(
    nodes: Sequence[Node], work: Callable[[], Value], environment: dict[str, str], seconds: float
) -> list[Answer[Value]]:
    """Do a small piece of work on each of some nodes, beside the jobs there; those that die meanwhile say nothing."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    remote: Any = ray.remote(call)
    options = {"num_cpus": 0, "max_retries": 0, "runtime_env": {"env_vars": environment}}
    asked = [remote.options(scheduling_strategy=On(node.id, soft=False), **options).remote(work) for node in nodes]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=seconds)
    answers = [_answer(node, reference, seconds) for node, reference in zip(nodes, asked, strict=True)]
    alive = {node.id for node in nodes_of()}
    return [answer for answer in answers if answer.problem is None or answer.node.id in alive]


def call(work: Callable[[], Value]) -> Value:
    """Do the work; by name, so that nodes import it from here."""
    return work()


def _answer(node: Node, reference: Any, seconds: float) -> Answer[Any]:  # noqa: ANN401
    import ray

    try:
        return Answer(node, ray.get(reference, timeout=0))
    except ray.exceptions.GetTimeoutError:
        ray.cancel(reference, force=True)
        return Answer(node, problem=f"did not answer within {seconds:.0f} s")
    except ray.exceptions.RayTaskError as problem:
        return Answer(node, problem=f"cannot do jobs: {problem.cause!r}")
    except ray.exceptions.RayError as problem:
        return Answer(node, problem=f"cannot do jobs: {type(problem).__name__}: {problem}")
