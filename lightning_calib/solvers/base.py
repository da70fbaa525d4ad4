"""What every solver is: an object that owns a fit from its start to its certificate."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lightning_calib.calibrators import Calibrator
from lightning_calib.functional.penalty import Reduction, expert_share
from lightning_calib.solvers.certificate import Certificate
from lightning_calib.solvers.collective import ALONE, Collective

# Logits, target, case ids, and features for calibrators that look at them.
Batch = tuple[Tensor, Tensor, Sequence[str] | None] | tuple[Tensor, Tensor, Sequence[str] | None, Tensor | None]
BatchKind = Literal["cases", "voxels", "images"]
SolverName = Literal["auto", "newton", "slsqp", "lbfgs", "adam"]

# Logits beyond this are refused in fits.
LARGEST_LOGIT = 1e4


class Solver(ABC):
    """A fit of one calibrator, in place.

    Args:
        calibrator: fitted from where it is.
        ignore_index: label of voxels that do not count.
        collective: the processes that share the data.

    Attributes:
        certificate: what is known about the fit; None until it has ended.
        batches: what the data must come as: whole ``cases``, ``voxels`` in random order, or ``images``.
    """

    name: ClassVar[SolverName]
    batches: BatchKind = "cases"

    def __init__(self, calibrator: Calibrator, ignore_index: int | None = None, collective: Collective = ALONE) -> None:
        self.calibrator, self.ignore_index, self.collective = calibrator, ignore_index, collective
        self.certificate: Certificate | None = None

    @property
    def done(self) -> bool:
        """Whether the fit has ended."""
        return self.certificate is not None

    @property
    @abstractmethod
    def passes(self) -> int:
        """How often all data were read so far."""

    @abstractmethod
    def solve(self, batches: Iterable[Batch], val: Iterable[Batch] | None = None) -> Certificate:
        """Fit to the end.

        Args:
            batches: this process's logits, targets, case ids and perhaps features; read as often as needed.
            val: whole cases to stop and to choose by; full-batch solvers need none.
        """

    @abstractmethod
    def progress(self) -> dict[str, float]:
        """Figures for trackers, after a pass."""

    def describe(self) -> dict[str, Any]:
        """The certificate as plain types, as result files hold it."""
        return {} if self.certificate is None else self.certificate.to_dict()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed fit needs, between two passes: tensors and plain types only."""
        return {"certificate": None if self.certificate is None else self.certificate.to_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, with a solver built by the same arguments."""
        self.certificate = None if state["certificate"] is None else Certificate(**state["certificate"])


class PassSolver(Solver):
    """A solver that is fed with passes over the data, batch by batch, whoever reads them."""

    @abstractmethod
    def accumulate(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        features: Tensor | None = None,
    ) -> None:
        """Take a batch.

        Args:
            logits: pooled logits ``(B, C, *S)``, or a list of voxels ``(N, C)``.
            target: labels ``(B, *S)`` or ``(N,)``.
            case_ids: one for each image.
            features: ``(B, F, *S)`` or ``(N, F)``, for calibrators that look at them.
        """

    @abstractmethod
    def end_pass(self, val_nll: float | None = None) -> None:
        """End a pass, in all processes at once.

        Args:
            val_nll: mean NLL of ``val`` now, for solvers that stop by it.
        """

    def solve(self, batches: Iterable[Batch], val: Iterable[Batch] | None = None) -> Certificate:
        """Take passes until the fit has ended."""
        while self.certificate is None:
            self._take_pass(batches)
            self.end_pass()
        return self.certificate

    def _take_pass(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.accumulate(*batch)


def check_size(logits: Iterable[Tensor]) -> None:
    """Refuse logits that leave a fit in float32 no room.

    Args:
        logits: the logits, or their largest magnitudes.
    """
    largest = max((float(values.detach().abs().amax()) for values in logits if values.numel()), default=0.0)
    if not largest <= LARGEST_LOGIT:
        raise ValueError(
            f"logits reach {largest:.3g}: beyond {LARGEST_LOGIT:g} every voxel is certain in float32, and no fit "
            f"can be told from another; divide all logits by a constant first, or look for a fault in the network"
        )


def strengths(lam: float, mu: float, eps: float, reduction: Reduction) -> dict[str, float | str]:
    """Penalties and ridge by name; refuses those that make no convex objective."""
    found = {"lam": lam, "mu": mu, "eps": eps}
    for name, value in found.items():
        if not 0 <= value < torch.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    expert_share(1, reduction)
    return {**found, "reduction": reduction}
