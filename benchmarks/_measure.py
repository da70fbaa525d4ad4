"""Seconds and anonymous memory of functions, side by side in one run; shared by the benchmarks."""

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Measured:
    """What a function took: best seconds, peak MiB of anonymous memory above the start, its result."""

    seconds: float
    mebibytes: float
    value: Any


def anonymous_memory() -> float:
    """RssAnon of this process in MiB: memory that no file backs, so neither mapped data nor page cache."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def settle() -> None:
    """Hand freed memory back to the system, so that a measurement does not start on another's leftovers."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def measure(function: Callable[[], Any]) -> Measured:
    """Run a function once, watching its memory from a second thread every 2 ms."""
    settle()
    start = peak = anonymous_memory()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    try:
        value = function()
        seconds = time.perf_counter() - begin
        peak = max(peak, anonymous_memory())
    finally:
        done.set()
        watcher.join()
    return Measured(seconds, peak - start, value)


def side_by_side(functions: dict[str, Callable[[], Any]], rounds: int = 3) -> dict[str, Measured]:
    """Measure several functions in turns, so that a busy machine slows all alike; best seconds, largest peak."""
    runs: dict[str, list[Measured]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            runs[name].append(measure(function))
    return {
        name: Measured(min(r.seconds for r in taken), max(r.mebibytes for r in taken), taken[-1].value)
        for name, taken in runs.items()
    }


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table to print."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
