"""A program that has jobs done by Ray: ``driver.py ADDRESS FOLDER WORK JOBS``."""

import sys
from functools import partial
from pathlib import Path

from lightning_calib.cli.errors import guarded
from lightning_calib.executors.ray import RayExecutor
from tests.executors import jobs


def main(address: str, folder: str, work: str, count: str) -> None:
    with RayExecutor(address) as executor:
        for outcome in executor.run(list(range(int(count))), partial(getattr(jobs, work), Path(folder))):
            print(outcome)


if __name__ == "__main__":
    sys.exit(guarded(partial(main, *sys.argv[1:])))
