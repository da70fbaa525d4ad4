"""Trials that several processes share through a storage of Optuna."""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from lightning_calib.experiment.search.draws import TrialRow, round_of
from lightning_calib.experiment.search.space import Space, Values, parameters
from lightning_calib.experiment.search.trials import Trials

# What is noted on a trial: who runs it, on which place, and whether it was set aside.
OWNER, PLACE, ABANDONED = "owner", "place", "abandoned"

# A trial of another machine is taken for dead after this; one on this machine once its process is gone.
LOST_AFTER = timedelta(hours=6)
UNSIGNED_AFTER = timedelta(minutes=1)
POLL_SECONDS = 0.2


class TrialQueue(Trials):
    """Trials that several processes share through a storage.

    A process that wants work asks the storage for a trial, signs it, and puts it on the first free place. A trial
    whose process is gone is set aside, and its place is free again for a trial that draws the same point.

    Args:
        name: name of the study; processes with the same name and storage share it.
        trials: how many to run, over all processes.
        seed: seed of the search.
        space: what is searched.
        storage: journal file or URL such as ``sqlite:///search.db``.
    """

    def __init__(self, name: str, trials: int, seed: int, space: Space, storage: str | Path) -> None:
        super().__init__(trials, seed, space)
        self.name, self.storage = name, open_storage(storage)
        self.study = optuna.create_study(
            study_name=name, storage=self.storage, direction="minimize", load_if_exists=True
        )
        self.running: Trial | None = None  # what this process runs now

    def __iter__(self) -> Iterator[tuple[int, Values]]:
        """Places and points for this process; waits where a round is not done yet."""
        while len(self._finished()) < self.trials:
            claimed = self._claim()
            if claimed is None:
                time.sleep(POLL_SECONDS)
                continue
            place, self.running = claimed
            self.study.sampler = Given(parameters(self.point(place)))
            yield place, self.space.suggest(self.running)
            self.running = None

    def tell(self, place: int, val_nll: float | None, values: Values, **facts: Any) -> TrialRow:
        """Record the trial that this process runs."""
        assert self.running is not None
        for name, fact in {"values": values, **facts}.items():
            self.running.set_user_attr(name, fact)
        state = TrialState.FAIL if val_nll is None else TrialState.COMPLETE
        self.study.tell(self.running, val_nll, state=state, skip_if_finished=True)
        return row_of(self.study.get_trials(deepcopy=False)[self.running.number])

    def rows(self) -> list[TrialRow]:
        """All trials that have a place."""
        placed = [trial for trial in self._kept() if PLACE in trial.user_attrs]
        return [row_of(trial) for trial in sorted(placed, key=lambda trial: trial.user_attrs[PLACE])]

    def _kept(self) -> list[FrozenTrial]:
        """Trials that were not set aside."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if ABANDONED not in trial.user_attrs]

    def _finished(self) -> set[int]:
        """Places whose trials are done."""
        return {trial.user_attrs[PLACE] for trial in self._kept() if trial.state.is_finished()}

    def _open(self) -> int:
        """Number of places that may be taken now: those of the first round that is not done, and all before."""
        done = self._finished()
        first = next((place for place in range(self.trials) if place not in done), self.trials - 1)
        return min(self.trials, round_of(first).stop)

    def _claim(self) -> tuple[int, Trial] | None:
        """The first free place and a trial for it; None where all of this round are taken."""
        for lost in self._kept():
            if lost.state == TrialState.RUNNING and is_lost(lost):
                self._set_aside(lost.number)
        if len(self._kept()) >= self._open():
            return None
        trial = self.study.ask()
        trial.set_user_attr(OWNER, owner())
        place = self._place_for(trial.number)
        if place is None:
            self._set_aside(trial.number)
            return None
        trial.set_user_attr(PLACE, place)
        return place, trial

    def _place_for(self, number: int) -> int | None:
        """A free place for a new trial; those who ask at the same time choose in the order of their numbers."""
        others = [other for other in self._kept() if other.number != number]
        taken = {other.user_attrs[PLACE] for other in others if PLACE in other.user_attrs}
        free = [place for place in range(self._open()) if place not in taken]
        choosing_before = sum(PLACE not in other.user_attrs and other.number < number for other in others)
        return free[choosing_before] if choosing_before < len(free) else None

    def _set_aside(self, number: int) -> None:
        """Give a trial up; its place is free."""
        study = self.storage.get_study_id_from_name(self.name)
        trial = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        self.storage.set_trial_user_attr(trial, ABANDONED, True)
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


class Given(BaseSampler):  # type: ignore[misc]  # Optuna is untyped here
    """Lets a trial suggest a point that was drawn already, so that the storage knows it.

    Args:
        point: value of each parameter.
    """

    def __init__(self, point: Mapping[str, Any]) -> None:
        self.point = point

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """No parameters together."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """No parameters together."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:  # noqa: ANN401
        """The parameter of the point."""
        return self.point[param_name]


def open_storage(storage: str | Path) -> BaseStorage:
    """Storage of a URL such as ``sqlite:///search.db``, or of a journal file."""
    if "://" in str(storage):
        return RDBStorage(str(storage))
    path = Path(storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


def row_of(trial: FrozenTrial) -> TrialRow:
    """A trial as a row: its place, state, NLL and values; passes or the error where they are known."""
    facts = trial.user_attrs
    value = trial.value if trial.state == TrialState.COMPLETE else None
    row = {"trial": facts.get(PLACE), "state": trial.state.name.lower(), "val_nll": value}
    return row | {"values": facts.get("values", {})} | {key: facts[key] for key in ("passes", "error") if key in facts}


def owner() -> str:
    """Who runs a trial: machine, process and when the process began, since numbers of processes are used again."""
    return f"{socket.gethostname()}:{os.getpid()}:{began(os.getpid())}"


def began(process: int) -> str:
    """When a process began, in ticks of its machine; empty where the system does not say."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]  # the name before it may hold anything


def is_lost(trial: FrozenTrial) -> bool:
    """Whether nobody will finish a running trial: its process is gone, or was never heard of again."""
    host, process, since = (*trial.user_attrs.get(OWNER, "").split(":"), "", "")[:3]
    started = trial.datetime_start
    age = datetime.now() - started if started is not None else LOST_AFTER
    if not process:
        return age > UNSIGNED_AFTER
    if host != socket.gethostname():
        return age > LOST_AFTER
    another = since and began(int(process)) not in ("", since)
    return int(process) == os.getpid() or not _alive(int(process)) or bool(another)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
