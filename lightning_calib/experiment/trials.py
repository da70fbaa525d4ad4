"""Trials of a shared, interruptible search.

A search has a fixed number of places. A process that wants work asks the storage for a trial, signs it, and puts it on
the first free place; then it draws the point by a sampler that is seeded by the seed of the search and the place. A
trial whose process is gone is set aside, and its place is free again for a trial that draws the same point: an
interrupted search goes on to the result that it would have had.
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
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

TrialRow = dict[str, Any]

# What is noted on a trial: who runs it, on which place, and whether it was set aside.
OWNER, PLACE, ABANDONED = "owner", "place", "abandoned"

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
        self.running: int | None = None  # number of the trial that this process runs now

    def __iter__(self) -> Iterator[tuple[int, Trial]]:
        """Places and trials for this process; ends when all are done, wherever they run."""
        while True:
            claimed = self._claim()
            if claimed is not None:
                self.running = claimed[1].number
                yield claimed
                self.running = None
            elif not any(trial.state == TrialState.RUNNING for trial in self._kept()):
                return
            else:
                time.sleep(POLL_SECONDS)

    def tell(self, trial: Trial, value: float | None, facts: dict[str, Any]) -> None:
        """Record a trial's value, or its failure (None), with facts about it."""
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        self.study.tell(trial, value, state=state, skip_if_finished=True)

    def rows(self) -> list[TrialRow]:
        """What is known about each trial, in order of their places."""
        return [row_of(trial) for trial in sorted(self._kept(), key=lambda t: t.user_attrs.get(PLACE, self.trials))]

    def row(self, number: int) -> TrialRow:
        """What is known about one trial."""
        return row_of(self.study.get_trials(deepcopy=False)[number])

    def _kept(self) -> list[FrozenTrial]:
        """Trials that were not set aside."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if ABANDONED not in trial.user_attrs]

    def _claim(self) -> tuple[int, Trial] | None:
        """The first free place and a trial for it; None where all are taken."""
        for lost in self._kept():
            if lost.state == TrialState.RUNNING and lost.number != self.running and is_lost(lost):
                self._set_aside(lost.number)
        if len(self._kept()) >= self.trials:
            return None
        trial = self.study.ask()
        trial.set_user_attr(OWNER, owner())
        place = self._place_for(trial.number)
        if place is None:
            self._set_aside(trial.number)
            return None
        trial.set_user_attr(PLACE, place)
        state = np.random.SeedSequence([self.seed, place]).generate_state(1)
        self.study.sampler = TPESampler(seed=int(state[0]), multivariate=False)
        return place, trial

    def _place_for(self, number: int) -> int | None:
        """A free place for a new trial; those who ask at the same time choose in the order of their numbers."""
        others = [other for other in self._kept() if other.number != number]
        taken = {other.user_attrs[PLACE] for other in others if PLACE in other.user_attrs}
        free = [place for place in range(self.trials) if place not in taken]
        choosing_before = sum(PLACE not in other.user_attrs and other.number < number for other in others)
        return free[choosing_before] if choosing_before < len(free) else None

    def _set_aside(self, number: int) -> None:
        """Give a trial up; its place is free."""
        study = self.storage.get_study_id_from_name(self.name)
        trial = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        self.storage.set_trial_user_attr(trial, ABANDONED, True)
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


def row_of(trial: FrozenTrial) -> TrialRow:
    """A trial as a row: its place, state, NLL and values; passes or the error where they are known."""
    facts = trial.user_attrs
    value = trial.value if trial.state == TrialState.COMPLETE else None
    row = {"trial": facts.get(PLACE), "state": trial.state.name.lower(), "val_nll": value}
    return row | {"values": facts.get("values", {})} | {key: facts[key] for key in ("passes", "error") if key in facts}


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
