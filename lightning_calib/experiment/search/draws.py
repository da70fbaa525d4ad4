"""Which points a search tries.

The draw of a trial sees the trials of earlier rounds and no others: those of one round may run at the same time, on
whatever number of machines, and come out as they would one after the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from lightning_calib.experiment.search.space import Space, Values, parameters

TrialRow = dict[str, Any]

FIRST_ROUND = 10  # the points that the tree-structured Parzen estimator draws at random, before it looks at any
ROUND = 5


def round_of(place: int) -> range:
    """Places of the round that a trial belongs to.

    Example:
        >>> round_of(3), round_of(10), round_of(17)
        (range(0, 10), range(10, 15), range(15, 20))
    """
    if place < FIRST_ROUND:
        return range(FIRST_ROUND)
    start = place - (place - FIRST_ROUND) % ROUND
    return range(start, start + ROUND)


def rounds(trials: int) -> list[range]:
    """All rounds of a search.

    Example:
        >>> rounds(12)
        [range(0, 10), range(10, 12)]
    """
    starts = [place for place in range(trials) if round_of(place).start == place]
    return [range(start, min(round_of(start).stop, trials)) for start in starts]


def draw(space: Space, rows: Iterable[TrialRow], seed: int, place: int) -> Values:
    """The point of a trial.

    Args:
        space: what is searched.
        rows: trials of the search, those of earlier rounds among them.
        seed: seed of the search.
        place: number of the trial.
    """
    return draw_from(earlier_rounds(space, rows, place), space, seed, place)


def earlier_rounds(space: Space, rows: Iterable[TrialRow], place: int) -> list[FrozenTrial]:
    """What the draws of a round see."""
    study = optuna.create_study()
    for row in sorted((row for row in rows if row["trial"] < round_of(place).start), key=_place):
        study.enqueue_trial(parameters(row["values"]))
        trial = study.ask()
        space.suggest(trial)
        failed = row["state"] != "complete"
        study.tell(trial, None if failed else row["val_nll"], TrialState.FAIL if failed else TrialState.COMPLETE)
    found: list[FrozenTrial] = study.get_trials(deepcopy=False)
    return found


def draw_from(seen: Sequence[FrozenTrial], space: Space, seed: int, place: int) -> Values:
    """The point of a trial, given what it sees."""
    state = np.random.SeedSequence([seed, place]).generate_state(1)
    study = optuna.create_study(sampler=TPESampler(seed=int(state[0]), multivariate=False))
    study.add_trials(seen)
    return space.suggest(study.ask())


def _place(row: Mapping[str, Any]) -> int:
    return int(row["trial"])
