"""Affine calibrators with one expert for each predicted class: CDC, CMS_ap and CMS_op."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.affine import AffineCalibrator
from lightning_calib.calibrators.base import log_softmax
from lightning_calib.calibrators.linear import LinearInput
from lightning_calib.functional.bounds import within
from lightning_calib.functional.cones import (
    Cone,
    assemble_bias,
    assemble_weight,
    canonical_permutation,
    gaps,
    into_cone,
    place_in_cone,
    scores_from_gaps,
)
from lightning_calib.functional.experts import apply_experts, winning_class

Parametrization = Literal["clamp", "softplus"]

# Where softplus parameters of value 0 start: softplus(-10) = 4.5e-5. At -5 and C = 20 the start is far from the
# identity, and much lower the gradient is gone.
SOFTPLUS_ZERO = -10.0

# Largest distance between canonical scores; keeps softmax finite whatever the parameters are.
MAX_DISTANCE = 1e30


class ConditionalDirichletCalibration(AffineCalibrator):
    """Dirichlet calibration with one ``W, b`` for each class that the logits may predict.

    The expert of a voxel is its argmax: ``S(W_i log S(z) + b_i)``, ``i = argmax z``. It is free to change the
    argmax: the reference for what preservation costs.

    Example:
        >>> ConditionalDirichletCalibration(3).num_optimized
        36
    """

    name: ClassVar[str] = "cdc"
    description = "conditional Dirichlet calibration: one affine map for each predicted class"
    coordinates = "lightning_calib.solvers.coordinates:Coordinates"
    conditional: ClassVar[bool] = True

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.weight = nn.Parameter(torch.eye(num_classes).repeat(num_classes, 1, 1))
        self.bias = nn.Parameter(torch.zeros(num_classes, num_classes))

    def inputs(self, logits: Tensor, features: Tensor | None = None) -> LinearInput:
        """``x = log S(z)``, with the predicted class as expert."""
        return LinearInput(log_softmax(logits), expert=winning_class(logits))

    def assemble(self) -> tuple[Tensor, Tensor]:
        """``W (C, C, C)`` and ``b (C, C)`` as they are stored."""
        return self.weight, self.bias

    def calibrate(self, logits: Tensor) -> Tensor:
        """``log S(W_i x + b_i)``."""
        view = self.inputs(logits)
        assert view.expert is not None
        scores = apply_experts(self.weight.to(logits), self.bias.to(logits), view.features, view.expert)
        return scores.log_softmax(dim=1)

    @property
    def num_identifiable(self) -> int:
        """That of a Dirichlet calibration, for each expert."""
        return self.num_classes * (self.num_classes**2 - 1)


class ConeScaling(AffineCalibrator):
    r"""Conditional matrix scaling that keeps every canonical logit vector in its cone.

    In cone coordinates (:mod:`lightning_calib.functional.cones`) the expert ``i`` maps the gaps ``g >= 0`` of a
    voxel to

    .. math:: d = A_i g + \beta_i, \qquad A_i \ge 0, \; \beta_i \ge 0

    and the log-probabilities follow from ``d``. Sums of non-negative products stay non-negative in floating
    point: the cone is kept in the computer, not only on paper.

    ``parametrization="clamp"`` stores ``A`` and ``beta`` themselves and cuts negative values off in ``forward``
    (the gradient at 0 passes, :meth:`project_` brings stored values back): the start is the identity exactly,
    and entries can be 0. ``"softplus"`` is the form of the paper: always positive, the start is the identity to
    about ``1e-4 C``.

    The first row of ``W'`` and ``b_1`` cancel in the softmax. They are parameters because the penalty acts on the
    full ``W`` and ``b``.

    Args:
        num_classes: ``C``.
        spatial_dims: not used; calibrators share one signature.
        parametrization: ``"clamp"`` or ``"softplus"``.
    """

    cone: ClassVar[Cone]
    coordinates = "lightning_calib.solvers.cones:ConeCoordinates"
    conditional: ClassVar[bool] = True

    def __init__(self, num_classes: int, spatial_dims: int = 2, parametrization: Parametrization = "clamp") -> None:
        super().__init__(num_classes, spatial_dims)
        if parametrization not in ("clamp", "softplus"):
            raise ValueError(f"parametrization must be 'clamp' or 'softplus', got {parametrization!r}")
        self.parametrization: Parametrization = parametrization
        zero, one = (0.0, 1.0) if parametrization == "clamp" else (SOFTPLUS_ZERO, math.log(math.expm1(1)))
        inner = torch.full((num_classes - 1, num_classes - 1), zero).fill_diagonal_(one)
        self.inner = nn.Parameter(inner.repeat(num_classes, 1, 1))  # A (E, C-1, C-1)
        self.first_row = nn.Parameter(torch.eye(num_classes)[:1].repeat(num_classes, 1))  # (a, r) (E, C)
        self.bias_gaps = nn.Parameter(torch.full((num_classes, num_classes - 1), zero))  # beta (E, C-1)
        self.bias_first = nn.Parameter(torch.zeros(num_classes))  # b_1 (E,)

    def non_negative(self, stored: Tensor) -> Tensor:
        """Effective value of a stored parameter."""
        return within(stored, low=0.0) if self.parametrization == "clamp" else nn.functional.softplus(stored)

    def start(self, logits: Tensor) -> Tensor:
        """The logits as they are: once shifted, two that differ may be equal, and their order be lost."""
        return logits

    def inputs(self, logits: Tensor, features: Tensor | None = None) -> LinearInput:
        """Logits in canonical order, the largest at 0; the class in front is the expert."""
        permutation, places = canonical_permutation(logits, self.cone)
        canonical = logits.gather(1, permutation)
        return LinearInput(canonical - canonical[:, :1], permutation[:, 0], permutation, places)

    def labelled(
        self, logits: Tensor, target: Tensor, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The same as from :meth:`inputs`, without the permutation, which takes most of its time."""
        winner = winning_class(logits)
        canonical = into_cone(logits, winner, self.cone)
        return canonical - canonical[:, :1], winner, place_in_cone(logits, target, winner, self.cone)

    def assemble(self) -> tuple[Tensor, Tensor]:
        """``W (C, C, C)`` and ``b (C, C)`` in canonical class order."""
        weight = assemble_weight(self.non_negative(self.inner), self.first_row, self.cone)
        return weight, assemble_bias(self.non_negative(self.bias_gaps), self.bias_first, self.cone)

    def calibrate(self, logits: Tensor) -> Tensor:
        """Log-probabilities from the mapped gaps."""
        view = self.inputs(logits)
        assert view.expert is not None
        assert view.places is not None
        inner = self.non_negative(self.inner).to(logits)
        bias = self.non_negative(self.bias_gaps).to(logits)
        distances = apply_experts(inner, bias, gaps(view.features, self.cone), view.expert)
        scores = scores_from_gaps(distances.clamp(max=MAX_DISTANCE), self.cone)
        return scores.log_softmax(dim=1).gather(1, view.places)

    @torch.no_grad()
    def project_(self) -> None:
        """Cut negative stored values off, where they are the values themselves."""
        if self.parametrization == "clamp":
            self.inner.clamp_(min=0)
            self.bias_gaps.clamp_(min=0)

    @property
    def num_identifiable(self) -> int:
        """``A`` and the bias gaps, for each expert."""
        return self.num_classes**2 * (self.num_classes - 1)


class ArgmaxPreservingScaling(ConeScaling):
    """CMS_ap: conditional matrix scaling that keeps the predicted class.

    Example:
        >>> calibrator = ArgmaxPreservingScaling(3)
        >>> calibrator(torch.tensor([[0.0, 2.0, 1.0]])).argmax(1)
        tensor([1])
    """

    name: ClassVar[str] = "cms_ap"
    description = "conditional matrix scaling that keeps the predicted class"
    preserves: Cone | None = "argmax"
    cone: ClassVar[Cone] = "argmax"


class OrderPreservingScaling(ConeScaling):
    """CMS_op: conditional matrix scaling that keeps the order of all classes.

    Example:
        >>> calibrator = OrderPreservingScaling(3)
        >>> calibrator(torch.tensor([[0.0, 2.0, 1.0]])).argsort(1)
        tensor([[0, 2, 1]])
    """

    name: ClassVar[str] = "cms_op"
    description = "conditional matrix scaling that keeps the order of all classes"
    preserves: Cone | None = "order"
    monotone = True  # scores fall along the ranks: sums of gaps that are 0 or more
    cone: ClassVar[Cone] = "order"
