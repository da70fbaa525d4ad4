"""Run an experiment, killing it outright again and again; prints how many kills struck.

    python -m tests.experiment.killing OUTPUTS FOLDER KILLS SEED

Processes are forked, so that only the first pays for its imports. They die at a write, not at a time: fast and slow
machines then see the same kills.
"""

import os
import random
import signal
import sys

import torch

from tests.experiment.settings import run_small

LAST_WRITE = 40  # no kill comes later in a process; a whole run writes several hundred times


def is_write(event: str, arguments: tuple[object, ...]) -> bool:
    """Whether a file is about to be opened for writing or to get its final name."""
    if event != "open":
        return event == "os.rename"
    flags = arguments[2]
    return isinstance(flags, int) and flags & os.O_ACCMODE != os.O_RDONLY


def die_before(write: int) -> None:
    """Let this process be killed when it comes to its write of that number."""
    done = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if is_write(event, arguments):
            done += 1
            if done == write:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def attempt(outputs: str, folder: str, write: int | None) -> bool:
    """Whether the run was killed: before one of its writes, or never."""
    pid = os.fork()
    if pid == 0:
        if write is not None:
            die_before(write)
        run_small(outputs, folder)
        os._exit(0)
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
        struck += attempt(outputs, folder, rng.randint(1, LAST_WRITE))
    assert not attempt(outputs, folder, None)
    print(struck)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
