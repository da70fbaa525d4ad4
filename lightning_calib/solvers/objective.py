r"""The objective of every fit, differentiable, for solvers that need nothing but gradients.

.. math::
    \frac1N \sum_v -\log q_{y_v} + \frac1E \sum_i R(W_i, b_i) + \frac{\varepsilon}{2} |\theta - \theta_{identity}|^2

with ``N`` the voxels that count, over all ``E`` experts. Without the ridge there is usually no optimum: an absent class
drives its weights to infinity, and directions that softmax cannot see stay undecided.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lightning_calib.calibrators import (
    AffineCalibrator,
    BasisCalibrator,
    Calibrator,
    ConeScaling,
    TemperatureScaling,
)
from lightning_calib.calibrators.base import is_known_finite, seen_by
from lightning_calib.functional.devices import sums_device
from lightning_calib.functional.penalty import Reduction
from lightning_calib.functional.voxels import as_images, count_labels
from lightning_calib.solvers.base import Batch
from lightning_calib.solvers.collective import ALONE, Collective

LAM, MU, EPS = 1e-3, 1e-3, 1e-8


def nll_sum(
    calibrator: Calibrator,
    logits: Tensor,
    target: Tensor,
    ignore_index: int | None = None,
    features: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of ``-log q_y`` over the voxels that count, and their number.

    Args:
        calibrator: maps pooled logits to log-probabilities.
        logits: ``(B, C, *S)``.
        target: labels ``(B, *S)``.
        ignore_index: label of voxels that do not count.
        features: ``(B, F, *S)``, for calibrators that look at them.

    Returns:
        The sum, differentiable, in float64 where the device has it; the number as an integer tensor.

    Example:
        >>> from lightning_calib.calibrators import Identity
        >>> total, count = nll_sum(Identity(2), torch.zeros(1, 2, 4), torch.tensor([[0, 1, 9, 9]]), ignore_index=9)
        >>> round(float(total / count), 4), int(count)
        (0.6931, 2)
    """
    if not is_known_finite():
        _check_labels(logits, target, ignore_index)
    keep = torch.ones_like(target, dtype=torch.bool) if ignore_index is None else target != ignore_index
    safe = target.where(keep, 0).long()
    log_probs = calibrator(logits, *seen_by(calibrator, features))
    picked = -log_probs.gather(1, safe.unsqueeze(1)).squeeze(1)
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    return torch.where(keep, picked, 0).sum(dtype=wide), keep.sum()


def _check_labels(logits: Tensor, target: Tensor, ignore_index: int | None) -> None:
    """Refuse labels of another shape or type, and those that name no class."""
    images, labels = as_images(logits, target)
    keep = None if ignore_index is None else (labels != ignore_index).flatten()
    count_labels(labels.flatten(), keep, [slice(None)], images.shape[1], "the batch")


class PooledNLL:
    """Mean NLL over the voxels of all batches; sums stay on the device of the data.

    Args:
        calibrator: maps pooled logits to log-probabilities.
        ignore_index: label of voxels that do not count.
    """

    def __init__(self, calibrator: Calibrator, ignore_index: int | None = None) -> None:
        self.calibrator, self.ignore_index = calibrator, ignore_index
        self.sums = torch.zeros(2, dtype=torch.float64)  # NLL and voxels

    @torch.no_grad()
    def add(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        features: Tensor | None = None,
    ) -> None:
        """Take a batch."""
        total, count = nll_sum(self.calibrator, logits, target, self.ignore_index, features)
        device = sums_device(total.device)
        both = torch.stack([total, count.to(total)]).to(device).double()
        self.sums = self.sums.to(device) + both

    def mean(self, collective: Collective = ALONE) -> tuple[float, int]:
        """The mean over all processes, and the number of voxels."""
        total, count = collective.sum(self.sums).tolist()
        if count == 0:
            raise ValueError("no valid voxels: every target is ignore_index, or there are no batches")
        return total / count, int(count)


def mean_nll(
    calibrator: Calibrator,
    batches: Iterable[Batch],
    ignore_index: int | None = None,
    collective: Collective = ALONE,
) -> tuple[float, int]:
    """Mean of ``-log q_y`` over the voxels of all batches, and their number."""
    pooled = PooledNLL(calibrator, ignore_index)
    for batch in batches:
        pooled.add(*batch)
    return pooled.mean(collective)


class Regularization:
    """``mean_i R(W_i, b_i)`` and the ridge of a calibrator when called; knows the identity from the first call on.

    Args:
        calibrator: the calibrator.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        reduction: ``mean`` or ``sum`` of the penalty over experts.
    """

    def __init__(
        self,
        calibrator: Calibrator,
        lam: float = LAM,
        mu: float = MU,
        eps: float = EPS,
        reduction: Reduction = "mean",
    ) -> None:
        self.calibrator, self.lam, self.mu, self.eps, self.reduction = calibrator, lam, mu, eps, reduction
        self._identity: list[Tensor] = []

    def __call__(self) -> Tensor:
        """What is added to the mean NLL."""
        return self.calibrator.penalty(self.lam, self.mu, self.reduction) + self.ridge()

    def ridge(self) -> Tensor:
        """``(eps / 2) |theta - theta_identity|²``; 0 for calibrators without convex coordinates."""
        calibrator = self.calibrator
        if isinstance(calibrator, BasisCalibrator):
            return self.eps / 2 * calibrator.change().square().sum()
        if not isinstance(calibrator, AffineCalibrator):
            return torch.zeros(())
        if isinstance(calibrator, TemperatureScaling):
            return self.eps / 2 * (1 / calibrator.temperature - 1).square()
        if not self._identity:
            start = type(calibrator)(calibrator.num_classes, calibrator.spatial_dims)
            pairs = zip(start.parameters(), calibrator.parameters(), strict=True)
            self._identity = [identity.detach().to(value) for identity, value in pairs]
        terms = []
        for (name, value), identity in zip(calibrator.named_parameters(), self._identity, strict=True):
            bounded = isinstance(calibrator, ConeScaling) and name in ("inner", "bias_gaps")
            effective = calibrator.non_negative(value) if bounded else value  # type: ignore[operator]
            terms.append((effective - identity).square().sum())
        return self.eps / 2 * sum(terms[1:], start=terms[0])


def ridge(calibrator: Calibrator, eps: float = EPS) -> Tensor:
    r"""``(eps / 2) |theta - theta_identity|²`` of linear calibrators, in the coordinates that newton uses.

    These are ``1/T`` for TS, the effective values of what has bounds (CMS, coefficients of a basis), the parameters
    elsewhere. Other calibrators have no ridge.

    Example:
        >>> from lightning_calib.calibrators import MatrixScaling
        >>> ridge(MatrixScaling(3)).item()
        0.0
    """
    return Regularization(calibrator, eps=eps).ridge()


def regularization(
    calibrator: Calibrator, lam: float = LAM, mu: float = MU, eps: float = EPS, reduction: Reduction = "mean"
) -> Tensor:
    """``mean_i R(W_i, b_i)`` and the ridge: what is added to the mean NLL.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> regularization(build("cms_op", 3)).item()
        0.0
    """
    return Regularization(calibrator, lam, mu, eps, reduction)()
