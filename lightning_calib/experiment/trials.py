"""Trials of a shared, interruptible search.

Every trial draws from a sampler of its own, seeded by the seed of the search and the trial's place. A trial whose
process is gone is set aside and its place is taken by a new one, which draws the same point: an interrupted search
goes on to the result that it would have had.
"""

import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

ABANDONED, OWNER, PLACE = "abandoned", "owner", "place"

# A trial of another machine is taken for dead after this; one on this machine once its process is gone.
LOST_AFTER = timedelta(hours=6)
UNSIGNED_AFTER = timedelta(minutes=1)
POLL_SECONDS = 0.2


def open_storage(storage: str | Path | None) -> BaseStorage:
    """Storage of a URL such as ``sqlite:///search.db``, of a journal file, or in memory (None)."""
    if storage is None:
        return InMemoryStorage()
    if "://" in str(storage):
        return RDBStorage(str(storage))
    path = Path(storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


class TrialQueue:
    """Trials of one study, handed out until there are enough.

    Args:
        name: name of the study; processes with the same name and storage share it.
        trials: how many to run, over all processes.
        seed: seed of the samplers.
        storage: journal file or URL; None for this process's memory.
    """

    def __init__(self, name: str, trials: int, seed: int = 0, storage: str | Path | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # one line a trial is the tracker's business
        self.name, self.trials, self.seed = name, trials, seed
        self.storage = open_storage(storage)
        self.study = optuna.create_study(
            study_name=name, storage=self.storage, direction="minimize", load_if_exists=True
        )
        self.mine: int | None = None

    def __iter__(self) -> Iterator[tuple[int, Trial]]:
        """Places and trials for this process; ends when all are done, wherever they run."""
        while True:
            claimed = self._claim()
            if claimed is not None:
                self.mine = claimed[1].number
                yield claimed
                self.mine = None
            elif not any(trial.state == TrialState.RUNNING for trial in self.places()):
                return
            else:
                time.sleep(POLL_SECONDS)

    def tell(self, trial: Trial, value: float | None, facts: dict[str, Any]) -> None:
        """Record a trial's value, or its failure (None), with facts about it."""
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        self.study.tell(trial, value, state=state, skip_if_finished=True)

    def places(self) -> list[FrozenTrial]:
        """Trials in order of their places, the abandoned ones left out."""
        trials = self.study.get_trials(deepcopy=False)
        kept = [trial for trial in trials if ABANDONED not in trial.user_attrs]
        return sorted(kept, key=lambda trial: trial.user_attrs.get(PLACE, self.trials))

    def _claim(self) -> tuple[int, Trial] | None:
        """The first free place and a trial for it; None where all are taken."""
        self._set_lost_aside()
        if len(self.places()) >= self.trials:
            return None
        trial = self.study.ask()
        trial.set_user_attr(OWNER, owner())
        others = [other for other in self.places() if other.number != trial.number]
        taken = {other.user_attrs[PLACE] for other in others if PLACE in other.user_attrs}
        free = [place for place in range(self.trials) if place not in taken]
        # Processes that ask at the same time choose in the order of the numbers that the storage gave them.
        before = sum(PLACE not in other.user_attrs and other.number < trial.number for other in others)
        if before >= len(free):
            self._set_aside(trial.number)
            return None
        place = free[before]
        trial.set_user_attr(PLACE, place)
        state = np.random.SeedSequence([self.seed, place]).generate_state(1)
        self.study.sampler = optuna.samplers.TPESampler(seed=int(state[0]), multivariate=False)
        return place, trial

    def _set_lost_aside(self) -> None:
        for trial in self.places():
            if trial.state == TrialState.RUNNING and trial.number != self.mine and is_lost(trial):
                self._set_aside(trial.number)

    def _set_aside(self, number: int) -> None:
        study = self.storage.get_study_id_from_name(self.name)
        trial = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        self.storage.set_trial_user_attr(trial, ABANDONED, True)
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


def owner() -> str:
    """Who runs a trial: machine and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_lost(trial: FrozenTrial) -> bool:
    """Whether nobody will finish a running trial: its process is gone, or was never heard of again."""
    host, _, process = trial.user_attrs.get(OWNER, "").rpartition(":")
    started = trial.datetime_start
    age = datetime.now() - started if started is not None else LOST_AFTER
    if not process:
        return age > UNSIGNED_AFTER
    if host != socket.gethostname():
        return age > LOST_AFTER
    return int(process) == os.getpid() or not _alive(int(process))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
