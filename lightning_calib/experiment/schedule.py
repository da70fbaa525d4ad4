"""How long jobs take on a number of workers: handed out in their order, each to the first worker that is free."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Chain:
    """Work that comes in rounds: the tasks of a round may run at once, the next round begins when all are done.

    A job that is not split is one round of one task.

    Attributes:
        name: what it is.
        rounds: seconds of each task, round by round.
    """

    name: str
    rounds: tuple[tuple[float, ...], ...]

    @property
    def seconds(self) -> float:
        """Work in all."""
        return sum(map(sum, self.rounds))

    @property
    def longest(self) -> float:
        """Time that it takes on any number of workers."""
        return sum(max(tasks, default=0.0) for tasks in self.rounds)


def finish_time(chains: Sequence[Chain], workers: int) -> float:
    """Seconds until all chains are done, tasks handed out in the order in which they become ready.

    Args:
        chains: in the order in which they are submitted.
        workers: tasks that run at a time.

    Example:
        >>> jobs = [Chain("a", ((4.0,),)), Chain("b", ((3.0,),)), Chain("c", ((3.0,),))]
        >>> finish_time(jobs, 1), finish_time(jobs, 2), finish_time(jobs, 9)
        (10.0, 6.0, 4.0)
        >>> finish_time([Chain("search", ((1.0,), (2.0, 2.0), (1.0,)))], 2)
        4.0
    """
    if workers < 1:
        raise ValueError(f"workers = {workers}: give at least 1")
    ready: deque[tuple[int, float]] = deque()
    waiting = [deque(chain.rounds) for chain in chains]
    left = [0] * len(chains)

    def release(number: int) -> None:
        while waiting[number] and not left[number]:
            tasks = waiting[number].popleft()
            left[number] = len(tasks)
            ready.extend((number, seconds) for seconds in tasks)

    for number in range(len(chains)):
        release(number)
    now, running = 0.0, list[tuple[float, int]]()
    while ready or running:
        while ready and len(running) < workers:
            number, seconds = ready.popleft()
            heapq.heappush(running, (now + seconds, number))
        now, number = heapq.heappop(running)
        left[number] -= 1
        release(number)
    return now
