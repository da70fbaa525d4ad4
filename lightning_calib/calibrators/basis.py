"""Calibrators whose scores are non-negative combinations of given functions of the gaps."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.featured import FeaturedCalibrator
from lightning_calib.calibrators.linear import LinearCalibrator, LinearInput
from lightning_calib.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE
from lightning_calib.functional.bounds import within
from lightning_calib.functional.cones import Cone
from lightning_calib.functional.penalty import Reduction


class BasisCalibrator(FeaturedCalibrator, LinearCalibrator):
    r"""Scores of ``J`` given functions with bounded coefficients ``\theta`` of the voxel's expert ``e``.

    .. math:: s_k = -\sum_j \theta_{ej} \Phi_{jk}, \qquad q = S(s), \qquad \theta \ge 0

    ``\Phi_{jk} \ge 0`` depends on the voxel's gaps ``g_k = \max z - z_k`` and perhaps on its features. Where every
    ``\Phi_{jk}`` is a non-decreasing function of ``g_k``, the same for all classes, the order of the classes is kept.
    The negative log-likelihood is convex in ``\theta``. With the coefficients ``\iota`` of the identity,
    ``\sum_j \iota_j \Phi_{jk} = g_k``, scores are computed as ``-(g_k + \sum_j (\theta_j - \iota_j) \Phi_{jk})``: the
    start is the identity to the last bit.

    A subclass gives :meth:`identity` and :meth:`basis`, those with experts :meth:`experts` and ``num_experts``, those
    with features ``looks_at = "features"`` and ``feature_names``.

    Coefficients that the identity needs are at least 1e-3, the others at least 0; all are at most 1e3, as ``1/T`` is.

    Attributes:
        feature_names: the features that it looks at, in order.
    """

    coordinates: ClassVar[str | None] = "lightning_calib.solvers.basis:BasisCoordinates"
    preserves: Cone | None = "order"
    _low: Tensor
    _high: Tensor
    _identity: Tensor

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        identity = self.identity()
        self.coefficients = nn.Parameter(identity.repeat(self.num_experts, 1))  # (E, J)
        for name, value in zip(("_low", "_high", "_identity"), (*self.bounds(), identity), strict=True):
            self.register_buffer(name, value, persistent=False)  # where the coefficients are: nothing is sent there

    @property
    def num_experts(self) -> int:
        """One set of coefficients, unless a subclass has more."""
        return 1

    def identity(self) -> Tensor:
        r"""Coefficients ``\iota (J,)`` of the identity."""
        raise NotImplementedError

    def basis(self, gaps: Tensor, features: Tensor | None = None) -> Tensor:
        r"""``\Phi (B, J, C, n)`` of gaps ``(B, C, n)`` and features ``(B, F, n)``."""
        raise NotImplementedError

    def experts(self, logits: Tensor) -> Tensor | None:
        """Expert ``(B, n)`` of each voxel of logits ``(B, C, n)``; None where there is one."""
        return None

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Least and largest coefficients, each ``(J,)``."""
        identity = self.identity()
        low = torch.where(identity > 0, 1 / MAX_TEMPERATURE, 0.0)
        return low, torch.full_like(identity, 1 / MIN_TEMPERATURE)

    def starting_point(self, like: Tensor) -> Tensor:
        r"""``\iota (J,)`` on the device and in the precision of another tensor."""
        return self._identity.to(like)

    def shrinkage(self) -> Tensor:
        """Strength ``(J,)`` of the penalty on the square of each coefficient, of whatever expert: none."""
        return torch.zeros_like(self._identity)

    def penalty(self, lam: float, mu: float, reduction: Reduction = "mean") -> Tensor:
        """The shrinkage; strengths of penalties on matrices have no meaning here."""
        return (self.shrinkage().to(self.coefficients) * self.coefficients.square()).sum()

    def change(self) -> Tensor:
        r"""``\theta - \iota (E, J)``, of coefficients within their bounds."""
        low, high, identity = (value.to(self.coefficients) for value in (self._low, self._high, self._identity))
        return within(self.coefficients, low, high) - identity

    def scores(self, change: Tensor, gaps: Tensor, features: Tensor | None = None) -> Tensor:
        r"""``-(g_k + \sum_j (\theta_j - \iota_j) \Phi_{jk})``, ``(B, C, n)``.

        Args:
            change: ``\theta - \iota`` of each voxel ``(B, J, n)``, or of all of them ``(1, J, 1)``.
            gaps: ``(B, C, n)``.
            features: ``(B, F, n)``.
        """
        values = self.basis(gaps, features)
        if change.shape[-1] == 1:  # one product for all voxels
            return -(gaps + torch.einsum("bj,bjcn->bcn", change[..., 0].expand(len(gaps), -1), values))
        return -(gaps + (change.unsqueeze(2) * values).sum(1))

    def slope(self, residual: Tensor, gaps: Tensor, features: Tensor | None = None) -> Tensor:
        """Gradient in the coefficients ``(J,)`` from that in the scores ``(B, C, n)``: transpose of :meth:`scores`."""
        return -torch.einsum("bcn,bjcn->j", residual, self.basis(gaps, features))

    def inputs(self, logits: Tensor, features: Tensor | None = None) -> LinearInput:
        """Gaps ``(B, C, n)`` and, below them, features."""
        seen = torch.cat([-logits, self.checked(features, logits)], dim=1) if self.feature_names else -logits
        return LinearInput(seen, self.experts(logits))

    def calibrate(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """``log S(s)``."""
        change, expert = self.change().to(logits), self.experts(logits)
        change = change.unsqueeze(-1) if expert is None else change.T[:, expert].transpose(0, 1)  # (B, J, n)
        return self.scores(change, -logits, features).log_softmax(dim=1)

    @property
    def voxel_values(self) -> int:
        """The functions, of every class."""
        return self.coefficients.shape[1] * self.num_classes

    @torch.no_grad()
    def project_(self) -> None:
        """Bring stored coefficients back into their bounds."""
        low, high = (value.to(self.coefficients) for value in (self._low, self._high))
        self.coefficients.copy_(self.coefficients.clamp(low, high))
