"""Commands that are run once, with what they took: time, memory, and what they printed."""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from _results_plan import Step

from lightning_calib.kit.files import read_json, write_json, write_text

ROOT = Path(__file__).parents[1]


@dataclass
class Entry:
    """What is known of a command.

    Attributes:
        stage: that it belongs to.
        line: the command itself.
        done: whether it has ended well.
        seconds: of all calls together.
        processor_seconds: of all calls, with those of processes that it began.
        gibibytes: of memory, the largest process.
        machine: what it ran on.
    """

    stage: str
    line: list[str]
    done: bool = False
    seconds: float = 0.0
    processor_seconds: float = 0.0
    gibibytes: float = 0.0
    machine: str = field(default_factory=lambda: machine())


def machine() -> str:
    """Processor, cores and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


class Journal:
    """The commands of one data set, in ``<run>/results/``.

    Args:
        folder: of the journal; ``journal.json``, and a text file with the output of every command.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "journal.json"
        known = read_json(self.path) if self.path.is_file() else {}
        self.entries = {name: Entry(**facts) for name, facts in known.items()}

    def do(self, step: Step) -> bool:
        """Run a command unless it is done; one that was another command is run anew. True where it ended well."""
        line = list(step.line)
        if step.name not in self.entries or self.entries[step.name].line != line:
            self.entries[step.name] = Entry(step.stage, line)
        entry = self.entries[step.name]
        if entry.done:
            return True
        print(f"$ python {shlex.join(line)}", flush=True)
        entry.done = self._call(entry, self.text_path(step.name))
        write_json(self.path, {name: asdict(found) for name, found in self.entries.items()})
        return entry.done

    def _call(self, entry: Entry, text: Path) -> bool:
        """Run it, shown and kept."""
        text.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *entry.line],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env=os.environ | {"COLUMNS": "120"},
            text=True,
        )
        assert process.stdout is not None
        told = []
        with process.stdout:
            for line in process.stdout:
                print(line, end="", flush=True)
                told.append(line)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        entry.seconds += time.perf_counter() - began
        entry.processor_seconds += used.ru_utime + used.ru_stime
        entry.gibibytes = max(entry.gibibytes, used.ru_maxrss / 2**20)
        write_text(text, "".join(told))
        return process.returncode == 0

    def text_path(self, name: str) -> Path:
        """Where the output of a command is."""
        return self.folder / f"{name}.txt"

    def text(self, name: str) -> str:
        """What a command printed; empty where it is not done."""
        done = name in self.entries and self.entries[name].done
        return self.text_path(name).read_text(encoding="utf-8") if done else ""

    def of(self, stages: Sequence[str]) -> list[Entry]:
        """The finished commands of some stages, in their order."""
        return [entry for entry in self.entries.values() if entry.done and entry.stage in stages]
