"""The trials of a search, in memory or in files of their own.

A search has a fixed number of places, and the point of a place depends on the seed and on the trials of earlier rounds
(:mod:`~lightning_calib.experiment.search.draws`): an interrupted search goes on to the result that it would have had.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial

from lightning_calib.experiment.search.draws import TrialRow, draw_from, earlier_rounds, round_of
from lightning_calib.experiment.search.space import Space, Values
from lightning_calib.kit.files import write_json
from lightning_calib.kit.typed import read_typed, typed


class Trials(ABC):
    """The trials of one search.

    Args:
        trials: how many to run, over all processes.
        seed: seed of the search.
        space: what is searched.
    """

    def __init__(self, trials: int, seed: int, space: Space) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # one line a trial is the tracker's business
        self.trials, self.seed, self.space = trials, seed, space
        self._seen: tuple[int, list[FrozenTrial]] | None = None  # by the round that begins at a place

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[int, Values]]:
        """Places and points for this process; ends when all are done, wherever they run."""

    @abstractmethod
    def tell(self, place: int, val_nll: float | None, values: Values, **facts: Any) -> TrialRow:
        """Record a trial's NLL, or its failure (None), with facts about it."""

    @abstractmethod
    def rows(self) -> list[TrialRow]:
        """What is known about each trial, in order of their places."""

    def point(self, place: int) -> Values:
        """The point of a place, once earlier rounds are done."""
        start = round_of(place).start
        if self._seen is None or self._seen[0] != start:
            self._seen = start, earlier_rounds(self.space, self.rows(), place)
        return draw_from(self._seen[1], self.space, self.seed, place)


@dataclass(frozen=True)
class _Row:
    """What every trial's row holds."""

    trial: int
    state: Literal["complete", "fail"]
    val_nll: float | None
    values: dict[str, Any]


class KeptTrials(Trials):
    """Trials of this process; in files, too, so that another one can go on with them or do some of them meanwhile.

    Args:
        trials: how many there are.
        seed: seed of the search.
        space: what is searched.
        folder: a folder for the files, used by this search alone; None for memory only.
    """

    def __init__(self, trials: int, seed: int, space: Space, folder: Path | None = None) -> None:
        super().__init__(trials, seed, space)
        self.folder = folder
        self._rows = {place: row for place in range(trials) if (row := self._read(place)) is not None}

    def __iter__(self) -> Iterator[tuple[int, Values]]:
        """Places that have no result yet, in order."""
        for place in range(self.trials):
            if place not in self._rows:
                yield place, self.point(place)

    def tell(self, place: int, val_nll: float | None, values: Values, **facts: Any) -> TrialRow:
        """Record a trial."""
        row = {"trial": place, "state": "fail" if val_nll is None else "complete", "val_nll": val_nll}
        self._rows[place] = row | {"values": values} | facts
        if self.folder is not None:
            write_json(_file(self.folder, place), self._rows[place])
        return self._rows[place]

    def rows(self) -> list[TrialRow]:
        """All trials so far."""
        return [self._rows[place] for place in sorted(self._rows)]

    def _read(self, place: int) -> TrialRow | None:
        """A trial of an earlier process; a damaged file is none."""
        if self.folder is None or not _file(self.folder, place).is_file():
            return None
        try:
            row = read_typed(_file(self.folder, place), dict[str, Any])
            typed({key: row.get(key) for key in _Row.__annotations__}, _Row)
        except ValueError:
            return None
        return row if row["trial"] == place else None


def _file(folder: Path, place: int) -> Path:
    return folder / f"{place}.json"


def missing_places(folder: Path, places: range) -> list[int]:
    """Trials that have left no file yet."""
    return [place for place in places if not _file(folder, place).is_file()]
