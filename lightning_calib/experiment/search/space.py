"""What a search varies: the hyperparameters that matter to a calibrator and its solver."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from optuna import Trial

from lightning_calib.calibrators import Calibrator
from lightning_calib.solvers.fit import takes_epochs

Values = dict[str, float | int]

LEARNING_RATE = (1e-4, 3e-2)
PATIENCE = (10, 20, 50)
STRENGTH = (1e-6, 1e-1)
WEIGHT_DECAY = (1e-6, 1e-2)


def zero_or_log_uniform(trial: Trial, name: str, low: float, high: float) -> float:
    """Exact zero, or a value that is uniform on a log scale."""
    zero = trial.suggest_categorical(f"{name}_is_zero", [False, True])
    return 0.0 if zero else float(trial.suggest_float(name, low, high, log=True))


def parameters(values: Values) -> dict[str, Any]:
    """A point in Optuna's words, for a trial that is to suggest it.

    Example:
        >>> parameters({"lam": 0.0})
        {'lam': 0.0, 'lam_is_zero': True}
    """
    zeros = {f"{name}_is_zero": value == 0 for name, value in values.items()}
    return values | zeros


SUGGESTIONS: dict[str, Callable[[Trial], float | int]] = {
    "lr": lambda trial: float(trial.suggest_float("lr", *LEARNING_RATE, log=True)),
    "patience": lambda trial: int(trial.suggest_categorical("patience", PATIENCE)),
    "lam": lambda trial: zero_or_log_uniform(trial, "lam", *STRENGTH),
    "mu": lambda trial: zero_or_log_uniform(trial, "mu", *STRENGTH),
    "weight_decay": lambda trial: zero_or_log_uniform(trial, "weight_decay", *WEIGHT_DECAY),
}


@dataclass(frozen=True)
class Space:
    """The search space of the paper (Appendix on hyperparameters), cut down to what has an effect.

    Attributes:
        names: hyperparameters that are searched, in the order in which they are drawn.
    """

    names: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, calibrator: Calibrator, solver: str) -> "Space":
        """Space of a calibrator.

        Example:
            >>> from lightning_calib.calibrators import build
            >>> Space.of(build("vs", 3), "newton").names, Space.of(build("cms_op", 3), "newton").names
            (('mu',), ('lam', 'mu'))
            >>> Space.of(build("ts", 3), "newton").names, Space.of(build("lts", 3), "adam").names
            ((), ('lr', 'patience', 'weight_decay'))
        """
        names = penalised_by(calibrator)
        if takes_epochs(solver):
            names = (*names, *calibrator.searched)
        return cls(("lr", "patience", *names) if solver == "adam" else names)

    def suggest(self, trial: Trial) -> Values:
        """Draw a point."""
        return {name: SUGGESTIONS[name](trial) for name in self.names}


@torch.no_grad()
def penalised_by(calibrator: Calibrator) -> tuple[str, ...]:
    """Which of ``lam`` and ``mu`` the calibrator's penalty depends on, found by asking it away from the identity."""
    probe = type(calibrator)(calibrator.num_classes, calibrator.spatial_dims, **calibrator.options())
    for parameter in probe.parameters():
        parameter.add_(1.0)
    strengths: dict[str, dict[str, Any]] = {"lam": {"lam": 1.0, "mu": 0.0}, "mu": {"lam": 0.0, "mu": 1.0}}
    least = float(probe.penalty(0.0, 0.0))  # shrinkage of its own
    return tuple(name for name, strength in strengths.items() if float(probe.penalty(**strength)) > least)
