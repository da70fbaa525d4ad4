"""Jobs for executors: importable by name."""

import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch


def speak(folder: Path, job: str) -> None:
    """Say and warn something, then do what the name of the job says."""
    print(f"{job} begins")
    warnings.warn("the same for all", stacklevel=1)
    with (folder / f"{job}.attempts").open("a") as file:
        file.write("x")
    if job == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "refused":
        raise ValueError("refused for good reasons")
    if job == "greedy":
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        torch.zeros(2**40)
    (folder / f"{job}.txt").write_text(f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']}")


def wait_for(folder: Path, job: int) -> None:
    """Say where it runs, wait for permission, then leave a result."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    (folder / f"{job}.on").write_text(here)
    while not (folder / "go").exists():
        time.sleep(0.05)
    (folder / f"{job}.txt").write_text(f"result {job}")


def scribble(folder: Path, job: int) -> None:
    """Write without end, in this process and in a child that does not look after its parent."""
    code = (
        "import sys, time; from lightning_calib.kit.child import end_with_parent; end_with_parent()\n"
        "while True:\n    open(sys.argv[1], 'w').write(str(time.time())); time.sleep(0.02)"
    )
    environment = {**os.environ, "LIGHTNING_CALIB_PARENT": str(os.getpid())}
    child = subprocess.Popen([sys.executable, "-c", code, str(folder / f"{job}.child")], env=environment)
    while True:
        (folder / f"{job}.pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(0.02)


def sleep(folder: Path, job: int) -> None:
    """Say that it runs, and do nothing for a long time."""
    print(f"job {job} sleeps")
    (folder / f"{job}.on").write_text(str(os.getpid()))
    time.sleep(600)
