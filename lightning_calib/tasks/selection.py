"""Which epoch of a fit to keep: the one with the lowest NLL on ``val``, the identity included."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_calib.calibrators import Calibrator


@dataclass
class Selection:
    """NLL of ``val`` after each epoch, and the parameters of the best one.

    Attributes:
        curve: epoch and NLL, in order.
        identity_nll: NLL of the identity; NaN before it is known.
        best_nll: lowest NLL so far, the identity's where no epoch was better.
        best: parameters of the best epoch; empty where that is the identity.
    """

    curve: list[dict[str, float]] = field(default_factory=list)
    identity_nll: float = math.nan
    best_nll: float = math.inf
    best: dict[str, Tensor] = field(default_factory=dict)

    def add(self, epoch: int, nll: float, calibrator: Calibrator) -> None:
        """Take an epoch's result on record."""
        self.curve.append({"epoch": epoch, "val_nll": nll})
        self.best_nll = min(self.best_nll, self.identity_nll)
        if nll < self.best_nll:
            self.best_nll = nll
            self.best = {name: value.detach().clone() for name, value in calibrator.state_dict().items()}

    @torch.no_grad()
    def restore(self, calibrator: Calibrator) -> None:
        """Give a calibrator the best parameters."""
        fresh = type(calibrator)(calibrator.num_classes, calibrator.spatial_dims, **calibrator.options())
        calibrator.load_state_dict(self.best or fresh.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Plain types and tensors, for a checkpoint."""
        return vars(self).copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        vars(self).update(state)
