"""One progress display for a whole run: a bar on a terminal, plain lines elsewhere; both with the time left."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

Doing = Callable[[], Mapping[str, Sequence[str]]]
Tell = Callable[[float, float, int], None]

_LOOK_SECONDS = 1.0
_NODES_SHOWN = 8


class Display:
    """Shows what is done and how long the rest will take.

    Jobs have a kind (such as the calibrator). The time left counts what each kind took so far; while there are
    kinds that have not been seen, it is a lower bound and called one.

    Args:
        kinds: kind of every job to come.
        workers: how many jobs run at a time.
        console: where to write; standard output by default.
        quiet: write nothing at all.
        doing: says what each machine does now. A terminal shows it all the time, plain lines name the machines
            whenever a new one works.
        tell: gets the share of jobs that are done, the seconds left and the number of jobs done, after each job, also
            where nothing is shown.
    """

    def __init__(
        self,
        kinds: Iterable[str],
        workers: int = 1,
        console: Console | None = None,
        quiet: bool = False,
        doing: Doing | None = None,
        tell: Tell | None = None,
    ) -> None:
        self.waiting = list(kinds)
        self.total = len(self.waiting)
        self.workers = max(workers, 1)
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.console = Console() if console is None else console
        self.quiet = quiet
        self.last = time.monotonic()
        self.doing: Doing = doing or dict
        self.tell = tell
        self._at_work: set[str] = set()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        """Open the display."""
        if self.quiet or not self.total:
            return self
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = _Bar(self.doing, *columns, TextColumn("{task.fields[left]}"), console=self.console)
            self._bar.start()
            self._bar.add_task("calibrating", total=self.total, left="")
        else:
            self._say(f"[0/{self.total}] started, {min(self.workers, self.total)} at a time")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the display."""
        if self._bar is not None:
            self._bar.stop()

    def done(self, kind: str, text: str, seconds: float | None = None) -> None:
        """Count a finished job; where it is not said how long it took, it began when the last one ended."""
        now = time.monotonic()
        seconds, self.last = now - self.last if seconds is None else seconds, now
        self.waiting.remove(kind)
        self.seconds[kind].append(seconds)
        finished = self.total - len(self.waiting)
        if self.tell is not None:
            self.tell(finished / self.total, self.left(), finished)
        if self.quiet:
            return
        known = all(kind in self.seconds for kind in self.waiting)
        left = f"{'about' if known else 'at least'} {spoken(self.left())} left"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, description=text, left=left)
        else:
            self._say(f"[{finished}/{self.total}] {text} in {seconds:.1f} s; {left}")
            self._say_who_works()

    def _say_who_works(self) -> None:
        """Name the machines at work where these are several, and one is new."""
        now = {node: len(jobs) for node, jobs in self.doing().items() if jobs}
        known, self._at_work = self._at_work, self._at_work | set(now)
        if known != self._at_work and len(self._at_work) > 1:
            self._say("at work: " + ", ".join(f"{node} ({count})" for node, count in sorted(now.items())))

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def left(self) -> float:
        """Seconds that the waiting jobs will take whose kind has been seen."""
        means = {kind: sum(values) / len(values) for kind, values in self.seconds.items()}
        return sum(means.get(kind, 0.0) for kind in self.waiting) / self.workers


class _Bar(Progress):
    """A bar with a line below it for each machine at work."""

    def __init__(self, doing: Doing, *columns: Any, **options: Any) -> None:
        self.doing, self.looked, self.lines = doing, 0.0, Text()
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, then the machines; they are asked once a second."""
        yield from super().get_renderables()
        if time.monotonic() - self.looked > _LOOK_SECONDS:
            self.looked, self.lines = time.monotonic(), Text("\n".join(work_lines(self.doing())), overflow="ellipsis")
        yield self.lines


def work_lines(doing: Mapping[str, Sequence[str]]) -> list[str]:
    """What each machine does, a line each.

    Example:
        >>> work_lines({"b": ["fit ts(p)"], "a": ["fit ms(z)", "fit vs(z)"], "c": []})
        ['a: fit ms(z) | fit vs(z)', 'b: fit ts(p)']
    """
    busy = sorted((node, jobs) for node, jobs in doing.items() if jobs)
    lines = [f"{node}: {' | '.join(jobs)}" for node, jobs in busy[:_NODES_SHOWN]]
    more = len(busy) - _NODES_SHOWN
    return [*lines, f"... and {more} more machines"] if more > 0 else lines


def spoken(seconds: float) -> str:
    """A duration as people say it.

    Example:
        >>> spoken(42), spoken(150), spoken(7500)
        ('42 s', '2 min 30 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
