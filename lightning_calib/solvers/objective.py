r"""The objective of every fit, differentiable, for solvers that need nothing but gradients.

.. math::
    \frac1N \sum_v -\log q_{y_v} + \sum_i R(W_i, b_i) + \frac{\varepsilon}{2} |\theta - \theta_{identity}|^2

with ``N`` the voxels that count, over all experts. Without the ridge there is usually no optimum: an absent class
drives its weights to infinity, and directions that softmax cannot see stay undecided.
"""

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator, Calibrator, ConeScaling, TemperatureScaling

LAM, MU, EPS = 1e-3, 1e-3, 1e-8


def nll_sum(
    calibrator: Calibrator, logits: Tensor, target: Tensor, ignore_index: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sum of ``-log q_y`` over the voxels that count, and their number.

    Args:
        calibrator: maps pooled logits to log-probabilities.
        logits: ``(B, C, *S)``.
        target: labels ``(B, *S)``.
        ignore_index: label of voxels that do not count.

    Returns:
        The sum, differentiable, in float64 where the device has it; the number as an integer tensor.

    Example:
        >>> from lightning_calib.calibrators import Identity
        >>> total, count = nll_sum(Identity(2), torch.zeros(1, 2, 4), torch.tensor([[0, 1, 9, 9]]), ignore_index=9)
        >>> round(float(total / count), 4), int(count)
        (0.6931, 2)
    """
    keep = torch.ones_like(target, dtype=torch.bool) if ignore_index is None else target != ignore_index
    safe = target.where(keep, 0).long()
    picked = -calibrator(logits).gather(1, safe.unsqueeze(1)).squeeze(1)
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    return torch.where(keep, picked, 0).sum(dtype=wide), keep.sum()


def ridge(calibrator: Calibrator, eps: float = EPS) -> Tensor:
    r"""``(eps / 2) |theta - theta_identity|²`` of affine calibrators, in the coordinates that newton uses.

    These are ``1/T`` for TS, the effective ``A`` and bias gaps for CMS, the parameters elsewhere. Calibrators that
    are not affine have no ridge.

    Example:
        >>> from lightning_calib.calibrators import MatrixScaling
        >>> ridge(MatrixScaling(3)).item()
        0.0
    """
    if not isinstance(calibrator, AffineCalibrator):
        return torch.zeros(())
    if isinstance(calibrator, TemperatureScaling):
        return eps / 2 * (1 / calibrator.temperature - 1).square()
    start = type(calibrator)(calibrator.num_classes, calibrator.spatial_dims)
    total = torch.zeros(())
    for (name, value), identity in zip(calibrator.named_parameters(), start.parameters(), strict=True):
        bounded = isinstance(calibrator, ConeScaling) and name in ("inner", "bias_gaps")
        effective = calibrator.non_negative(value) if bounded else value  # type: ignore[operator]
        total = total + (effective - identity.to(value)).square().sum()
    return eps / 2 * total


def regularization(calibrator: Calibrator, lam: float = LAM, mu: float = MU, eps: float = EPS) -> Tensor:
    """``sum_i R(W_i, b_i)`` and the ridge: what is added to the mean NLL.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> regularization(build("cms_op", 3)).item()
        0.0
    """
    return calibrator.penalty(lam, mu) + ridge(calibrator, eps)
