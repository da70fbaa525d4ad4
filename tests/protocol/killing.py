"""Run a protocol, killing it outright again and again; prints how many kills struck.

    python -m tests.protocol.killing OUTPUTS FOLDER KILLS SEED

Processes are forked, so that only the first pays for its imports.
"""

import os
import random
import signal
import sys
import time

import torch

from lightning_calib.protocol.benchmark import run_protocol
from tests.protocol.settings import small_protocol


def attempt(outputs: str, folder: str, delay: float | None) -> bool:
    """Whether the run was killed: after `delay` seconds, or never."""
    pid = os.fork()
    if pid == 0:
        run_protocol(small_protocol(outputs), folder, workers=0, display=False)
        os._exit(0)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)  # harmless if it has ended: nobody has waited for it yet
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def main(outputs: str, folder: str, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    rng = random.Random(seed)
    struck = 0
    for _ in range(kills):
        struck += attempt(outputs, folder, rng.uniform(0.05, 0.8))
    assert not attempt(outputs, folder, None)
    print(struck)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
