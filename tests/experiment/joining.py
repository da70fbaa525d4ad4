"""One of several calls that share an experiment; notes the jobs that it does.

    python -m tests.experiment.joining OUTPUTS FOLDER NOTES CALLS

After its first job a call waits until all have begun, however long their imports take.
"""

import os
import sys
import time
from pathlib import Path

from lightning_calib.experiment import steps
from tests.experiment.settings import run_small

SETTINGS = {"pipelines": ["identity(z)", "ms(z)", "dc(z)", "ts(z)", "ets(p)"], "repeats": 1}


def main(outputs: str, folder: str, notes: Path, calls: int) -> None:
    own, real = notes / f"{os.getpid()}.txt", steps.perform

    def noted(work, job):
        with own.open("a") as file:
            file.write(f"{job}\n")
        while len(list(notes.iterdir())) < calls:
            time.sleep(0.05)
        real(work, job)

    steps.perform = noted
    run_small(outputs, folder, join=True, **SETTINGS)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
