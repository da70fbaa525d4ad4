"""Numbers on their way from a job to the tracker: a file of lines, written on one side and followed on the other."""

import json
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

POLL_SECONDS = 0.5
Receive = Callable[[dict[str, float], int], None]


class Journal(Logger):
    """A Lightning logger that writes each set of numbers as a line of JSON, for :class:`Follower` to read.

    Args:
        path: the file; one left by an earlier attempt is replaced.
        place: put behind the first word of every key: ``fit/objective`` becomes ``fit/<place>/objective``.
    """

    def __init__(self, path: Path, place: str = "") -> None:
        super().__init__()
        self.path, self.place = path, place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a new file, not an emptied one: a follower must see that it starts anew
        path.touch()

    @property
    def name(self) -> str:
        """What Lightning calls the logger."""
        return "journal"

    @property
    def version(self) -> str:
        """Nothing to tell apart."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The experiment's settings are the tracker's already."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a line."""
        placed = {self._placed(key): float(value) for key, value in metrics.items() if key != "epoch"}
        if placed:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step or 0, "metrics": placed}) + "\n")

    def _placed(self, key: str) -> str:
        first, _, rest = key.partition("/")
        return f"{first}/{self.place}/{rest}" if self.place else key


class Follower:
    """Reads the journals of a folder as they grow and hands every line on; used as a context.

    Args:
        folder: where journals are and appear; those of an earlier run must be gone.
        receive: gets numbers and their step, in one thread of its own.
    """

    def __init__(self, folder: Path, receive: Receive) -> None:
        self.folder, self.receive = folder, receive
        self._read: dict[Path, tuple[int, int]] = {}  # inode and offset of what has been read
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        """Start to follow."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Read what is left, then end."""
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self.catch_up()
        self.catch_up()

    def catch_up(self) -> None:
        """Hand on all whole lines that were written since the last time."""
        for path in sorted(self.folder.glob("*.jsonl")):
            inode = path.stat().st_ino
            known, offset = self._read.get(path, (inode, 0))
            with path.open("rb") as file:
                file.seek(offset if known == inode else 0)
                lines = file.read()
                whole = lines.rfind(b"\n") + 1
                self._read[path] = (inode, file.tell() - len(lines) + whole)
            for line in lines[:whole].splitlines():
                entry = json.loads(line)
                self.receive(entry["metrics"], entry["step"])
