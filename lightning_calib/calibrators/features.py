"""Feature temperature scaling: a temperature for each voxel or case, from features of it."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from lightning_calib.calibrators.base import LooksAt
from lightning_calib.calibrators.basis import BasisCalibrator
from lightning_calib.calibrators.temperature import MAX_TEMPERATURE
from lightning_calib.functional.bounds import within
from lightning_calib.functional.features import NEED_MEMBERS, OF_CASE, OF_MEMBERS, OF_POOLED, check_features

KNOTS, CASE_KNOTS = 4, 2

# Least distance of two knots. Features lie in [0, 1]; steeper hats would blow up what other machines round otherwise.
APART = 1e-2

# 1/T below which only rounding of large coefficients can get it: their least sum is the reciprocal of 1000.
LEAST = 0.5 / MAX_TEMPERATURE


class FeatureTemperatureScaling(BasisCalibrator):
    r"""FTS: a temperature for each voxel, a convex alternative to local temperature scaling.

    .. math::
        q = S(z / T), \qquad \frac1T = b_0 + \sum_f \sum_{j=1}^K b_{fj} h_{fj}(\phi_f), \qquad b \ge 0

    with the features ``\phi_f`` of the voxel (:mod:`lightning_calib.functional.features`) and the hats ``h_{fj}`` over
    ``K`` knots ``t_{f1} < \dots < t_{fK}``: 1 at the knot ``j``, 0 at the others, linear in between, constant beyond
    the first and the last. So ``1/T`` is a sum of non-negative piecewise linear functions of the features, and the
    negative log-likelihood is convex in ``b``. All classes of a voxel share its temperature, so that their order
    stays; the features do not see a shift of the logits.

    Hats of a feature add up to 1, as ``b_0`` does alone: ``1 + F (K - 1)`` of the ``1 + F K`` coefficients are
    identifiable. Knots are quantiles of the features in the data that it is fitted on (:meth:`look`), voxels in doubt
    counting more; whatever they are, it starts at the identity.

    Args:
        num_classes: ``C``.
        spatial_dims: 2 or 3.
        feature_names: the features; by default all of voxels, of which some need the members' scores.
        num_knots: ``K``, at least 2.

    Example:
        >>> calibrator = FeatureTemperatureScaling(2, feature_names=["entropy"], num_knots=2)
        >>> with torch.no_grad():
        ...     _ = calibrator.coefficients.copy_(torch.tensor([[0.5, 0.5, 0.0]]))
        >>> entropy = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 3)
        >>> calibrator.temperature_map(torch.zeros(1, 2, 3), entropy).detach().flatten()
        tensor([1.0000, 1.3333, 2.0000])
    """

    name: ClassVar[str] = "fts"
    description = "feature temperature scaling: a temperature for each voxel, from doubt and disagreement at it"
    looks_at: LooksAt = "features"
    monotone = True
    usual_features: ClassVar[tuple[str, ...]] = (*OF_POOLED, *OF_MEMBERS)
    knots: Tensor

    def __init__(
        self,
        num_classes: int,
        spatial_dims: int = 2,
        feature_names: Sequence[str] | None = None,
        num_knots: int = KNOTS,
    ) -> None:
        if num_knots < 2:
            raise ValueError(f"num_knots must be at least 2, got {num_knots}")
        self.feature_names = check_features(self.usual_features if feature_names is None else feature_names)
        self.num_knots = num_knots
        super().__init__(num_classes, spatial_dims)
        self.register_buffer("knots", torch.linspace(0, 1, num_knots).repeat(len(self.feature_names), 1))  # (F, K)

    def identity(self) -> Tensor:
        """A temperature of 1 from the constant alone."""
        return torch.eye(1, 1 + len(self.feature_names) * self.num_knots)[0]

    def stretches(self, features: Tensor) -> Tensor:
        """How much of each stretch between two knots lies below the feature, ``(B, F (K - 1), n)`` in [0, 1]."""
        knots = self.knots.to(features).unsqueeze(-1)  # (F, K, 1)
        low, width = knots[:, :-1], knots[:, 1:] - knots[:, :-1]
        return ((features.unsqueeze(2) - low) / width).clamp(0, 1).flatten(1, 2)

    def hats(self, features: Tensor) -> Tensor:
        """``h (B, F K, n)`` of features ``(B, F, n)``: differences of neighbouring stretches."""
        passed = torch.unflatten(self.stretches(features), 1, (len(self.feature_names), -1))
        ones = torch.ones_like(passed[:, :, :1])
        return (torch.cat([ones, passed], dim=2) - torch.cat([passed, torch.zeros_like(ones)], dim=2)).flatten(1, 2)

    def basis(self, gaps: Tensor, features: Tensor | None = None) -> Tensor:
        """The gaps, and the gaps times each hat."""
        assert features is not None  # forward has made sure
        hats = self.hats(features).unsqueeze(2)
        return torch.cat([torch.ones_like(hats[:, :1]), hats], dim=1) * gaps.unsqueeze(1)

    def scores(self, change: Tensor, gaps: Tensor, features: Tensor | None = None) -> Tensor:
        """``-g / T``: without the basis of every class."""
        assert features is not None
        return -(gaps * self._inverse(change, features))

    def slope(self, residual: Tensor, gaps: Tensor, features: Tensor | None = None) -> Tensor:
        """Transpose of :meth:`scores`."""
        assert features is not None
        pull = (residual * gaps).sum(1, keepdim=True)  # (B, 1, n)
        total = pull.sum((0, 2))
        parts = (self.stretches(features) @ pull.transpose(1, 2)).sum((0, 2)).view(len(self.feature_names), -1)
        above = torch.cat([total.expand(len(parts), 1), parts], dim=1)
        hats = above - torch.cat([parts, torch.zeros_like(above[:, :1])], dim=1)
        return -torch.cat([total, hats.flatten()])

    def temperature_map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Temperatures ``(B, 1, *S)`` of logits ``(B, C, *S)`` and features ``(B, F, *S)``."""
        seen = self.checked(features, logits).to(self.compute_dtype(logits))
        inverse = self._inverse(self.change().to(seen).unsqueeze(-1), seen.flatten(2))
        return (1 / inverse).view(logits.shape[0], 1, *logits.shape[2:])

    @property
    def num_identifiable(self) -> int:
        """Hats of a feature add up to the constant."""
        return self.num_optimized - len(self.feature_names)

    @property
    def voxel_values(self) -> int:
        """Stretches of all features, and the classes."""
        return len(self.feature_names) * self.num_knots + self.num_classes

    @torch.no_grad()
    def look(self, features: Tensor, weight: Tensor) -> bool:
        """Put the knots at quantiles of the features, as long as no hat is used: knots do not matter then."""
        if bool(self.coefficients[:, 1:].any()):
            return False
        probs = (-features[: self.num_classes]).softmax(0)
        doubt = weight * (1 - probs.square().sum(0))
        found = [spread_knots(row, doubt, self.num_knots) for row in features[self.num_classes :]]
        self.knots.copy_(torch.stack(found))
        return True

    def _inverse(self, change: Tensor, features: Tensor) -> Tensor:
        """``1/T (B, 1, n)`` of a change of the coefficients from the identity ``(1, J, 1)``, without the hats.

        From a feature's first knot on, each stretch adds the difference of the coefficients at its ends.
        """
        own = torch.unflatten(change[:, 1:], 1, (len(self.feature_names), -1))  # (1, F, K, 1)
        level = 1 + change[:, :1] + own[:, :, 0].sum(1, keepdim=True)
        steps = (own[:, :, 1:] - own[:, :, :-1]).flatten(1, 2)
        return within(level + steps.transpose(1, 2) @ self.stretches(features), LEAST)


class PooledFeatureTemperatureScaling(FeatureTemperatureScaling):
    """Feature temperature scaling from features that the pooled map has: no members' scores are needed.

    Example:
        >>> PooledFeatureTemperatureScaling(3).feature_names
        ('entropy', 'entropy_3', 'entropy_7', 'entropy_15', 'boundary')
    """

    name: ClassVar[str] = "fts_pooled"
    description = "feature temperature scaling from the pooled map alone"
    usual_features = tuple(OF_POOLED)


class CaseTemperatureScaling(FeatureTemperatureScaling):
    r"""A temperature for each case, from features of the case.

    The map of :class:`FeatureTemperatureScaling` with features of cases, by default linear between the smallest and
    the largest value of each feature in the fitted cases, and constant beyond. There are as many cases as
    there are, so a ridge ``\rho \sum_{fj} b_{fj}^2`` pulls towards one temperature for all.

    Args:
        num_classes: ``C``.
        spatial_dims: 2 or 3.
        feature_names: the features; by default all of cases, of which one needs the members' scores.
        num_knots: ``K``, at least 2.
        ridge: ``\rho``.

    Example:
        >>> calibrator = CaseTemperatureScaling(3)
        >>> calibrator.num_optimized, calibrator.num_identifiable
        (9, 5)
    """

    name: ClassVar[str] = "case_ts"
    description = "case temperature scaling: a temperature for each case, from features of the case"
    usual_features = tuple(OF_CASE)

    def __init__(
        self,
        num_classes: int,
        spatial_dims: int = 2,
        feature_names: Sequence[str] | None = None,
        num_knots: int = CASE_KNOTS,
        ridge: float = 1e-4,
    ) -> None:
        if not 0 <= ridge < torch.inf:
            raise ValueError(f"ridge must be a finite number of at least 0, got {ridge}")
        self.ridge = ridge
        super().__init__(num_classes, spatial_dims, feature_names, num_knots)

    def shrinkage(self) -> Tensor:
        """The ridge on all coefficients but the constant."""
        return self.ridge * (1 - self._identity)


class PooledCaseTemperatureScaling(CaseTemperatureScaling):
    """Case temperature scaling from features that pooled maps have: no members' scores are needed.

    Example:
        >>> PooledCaseTemperatureScaling(3).feature_names
        ('case_entropy', 'case_classes', 'case_size')
    """

    name: ClassVar[str] = "case_ts_pooled"
    description = "case temperature scaling from pooled maps alone"
    usual_features = tuple(name for name in OF_CASE if name not in NEED_MEMBERS)


def spread_knots(values: Tensor, weight: Tensor, count: int) -> Tensor:
    """Quantiles ``(count,)`` from the smallest to the largest value, moved apart where they coincide.

    Args:
        values: ``(k,)``.
        weight: what each counts ``(k,)``.
        count: at least 2.

    Example:
        >>> spread_knots(torch.tensor([0.0, 0.0, 0.0, 0.25, 1.0]), torch.ones(5), 3)
        tensor([0.0000, 0.5000, 1.0000])
    """
    order = values.argsort()
    ranked, mass = values[order], weight[order].cumsum(0)
    if not mass[-1] > 0:
        mass = torch.arange(1, len(mass) + 1, device=mass.device).to(mass)
    cuts = mass[-1] * torch.linspace(0, 1, count, dtype=mass.dtype, device=mass.device)
    knots = ranked[torch.searchsorted(mass, cuts).clamp(max=len(mass) - 1)]
    low, high = ranked[0], torch.maximum(ranked[-1], ranked[0] + count * APART)
    even = low + (high - low) * torch.linspace(0, 1, count, dtype=knots.dtype, device=knots.device)
    return knots if bool((knots.diff() >= APART).all()) else even
