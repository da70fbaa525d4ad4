"""How long tasks take on a number of workers: handed out in their order, each to the first worker that is free."""

import heapq
from collections.abc import Sequence


def finish_time(tasks: Sequence[float], workers: int) -> float:
    """Seconds until all tasks are done.

    Args:
        tasks: seconds of each, in the order in which they are handed out.
        workers: tasks that run at a time.

    Example:
        >>> finish_time([4.0, 3.0, 3.0], 1), finish_time([4.0, 3.0, 3.0], 2), finish_time([4.0, 3.0, 3.0], 9)
        (10.0, 6.0, 4.0)
    """
    if workers < 1:
        raise ValueError(f"workers = {workers}: give at least 1")
    busy = [0.0] * min(workers, len(tasks))  # when each worker will be free
    for seconds in tasks:
        heapq.heapreplace(busy, busy[0] + seconds)
    return max(busy, default=0.0)
