"""Jobs for worker processes: importable by name."""

import os
import signal
from pathlib import Path

import torch


def note(folder: Path, job: int) -> None:
    """Leave a file with the number of threads; 3 fails, 4 is killed, 7 feels Ctrl-C."""
    if job == 3:
        raise ValueError("three is refused")
    if job == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if job == 7:
        os.kill(os.getpid(), signal.SIGINT)
    (folder / f"{job}.txt").write_text(f"{os.getpid()} {torch.get_num_threads()} {os.environ.get('OMP_NUM_THREADS')}")


def wait_for_end(folder: Path, job: int) -> None:
    """Say who is working, and go on for ever."""
    (folder / "pid.txt").write_text(str(os.getpid()))
    signal.pause()
