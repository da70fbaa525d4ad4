"""What ``calibrate.py run --dry_run`` says: the cost of an experiment that is not begun."""

import json as json_format
import os
import shutil

from lightning_calib.executors.local import available_cores
from lightning_calib.experiment.cost.estimate import Cost
from lightning_calib.experiment.plan import Experiment
from lightning_calib.kit.progress import spoken

_GIGABYTE = 10**9
_MORE = (8, 32, 256, 1024)  # workers of larger machines


def show_cost(experiment: Experiment, workers: int | None, json: bool) -> int:
    """Measure a few voxels of the store, and print what the experiment will cost; nothing is begun.

    Args:
        experiment: what is planned; results that are there already cost nothing.
        workers: jobs at a time; by default one a core.
        json: print JSON.

    Returns:
        0, or 1 where the disk cannot hold what will be written.
    """
    slots = max(1, available_cores() if workers is None else workers)
    cost, free = experiment.cost(), shutil.disk_usage(experiment.store.path).free
    if json:
        print(json_format.dumps(cost.describe(slots) | {"disk_free_bytes": free}))
    elif cost.pieces:
        print(_text(cost, slots, free))
    else:
        print(f"everything is done in {experiment.folder}; nothing is left to compute")
    return 1 if cost.disk > free else 0


def _text(cost: Cost, workers: int, free: int) -> str:
    """The figures for a terminal."""
    longest = cost.longest
    assert longest is not None
    work = {kind: sum(piece.seconds for piece in jobs) for kind, jobs in cost.kinds().items()}
    stage, kind = max(work, key=lambda each: work[each])
    each, here = cost.memory / _GIGABYTE, _memory() / _GIGABYTE
    more = ", ".join(f"{spoken(cost.wall(number))} with {number}" for number in _MORE if number > workers)
    return "\n".join(
        [
            cost.table().to_text(),
            f"time:   about {spoken(cost.wall(workers))} with {workers} workers, where each has a core of its own",
            f"        with more: {more}",
            f"        longest job: {longest.name}, {spoken(longest.seconds / cost.threads)}",
            f"most:   {stage} {kind}, {work[stage, kind] / cost.seconds:.0%} of the processor time",
            f"disk:   {cost.disk / _GIGABYTE:.1f} GB of maps beside the outputs; {free / _GIGABYTE:.1f} GB are free",
            f"memory: {each:.1f} GB a worker, {workers * each:.1f} GB in all; this machine has {here:.1f} GB",
            "Measured on a few voxels of these outputs, on this processor. How many passes a fit takes is not known",
            "before it is made: expect a quarter more or less. Summary and report are not counted.",
        ]
    )


def _memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
