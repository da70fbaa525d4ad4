"""Gap splines: an increasing map of the gap to the winner, for each class that the logits may predict."""

from typing import ClassVar

import torch
from torch import Tensor

from lightning_calib.calibrators.basis import BasisCalibrator
from lightning_calib.functional.experts import winning_class

SEGMENTS = 6


class GapSplines(BasisCalibrator):
    r"""GS: an increasing, piecewise linear map of the gaps, for each predicted class ``i``.

    .. math::
        q = S(-s_i(g)), \qquad g_k = \max z - z_k, \qquad s_i(g) = \sum_j a_{ij} \min\{(g - t_{j-1})_+, t_j - t_{j-1}\}

    with knots ``0 = t_0 < t_1 < \dots < t_K = \infty`` and slopes ``a_{ij}`` within [1e-3, 1e3]: one temperature
    ``1 / a_{ij}`` for each stretch of the gap. The classes of a voxel share one increasing map, so that their order
    stays; gaps do not see a shift of the logits. Equal slopes are a temperature for the predicted class, equal maps
    of all classes are temperature scaling where slopes are equal, too. For two classes, any increasing map of the
    margin that keeps 0 is approached as knots are added.

    Knots are quantiles of the gaps of the data that it is fitted on (:meth:`look`), those near the winner counting
    more; whatever they are, it starts at the identity.

    Args:
        num_classes: ``C``.
        spatial_dims: not used; calibrators share one signature.
        segments: ``K``, slopes of each map.

    Example:
        >>> calibrator = GapSplines(2, segments=2)
        >>> calibrator.knots
        tensor([1.])
        >>> with torch.no_grad():
        ...     _ = calibrator.coefficients.copy_(torch.tensor([[1.0, 0.5], [1.0, 0.5]]))
        >>> calibrator(torch.tensor([[3.0, 0.0]])).diff().neg().item()  # 1 + 2 / 2
        2.0
    """

    name: ClassVar[str] = "gs"
    description = "gap splines: an increasing map of the gap to the winner, for each predicted class"
    knots: Tensor

    def __init__(self, num_classes: int, spatial_dims: int = 2, segments: int = SEGMENTS) -> None:
        if segments < 1:
            raise ValueError(f"segments must be at least 1, got {segments}")
        self.segments = segments
        super().__init__(num_classes, spatial_dims)
        self.register_buffer("knots", 2.0 ** torch.arange(segments - 1))  # t_1 ... t_(K-1)

    @property
    def num_experts(self) -> int:
        """One for each class."""
        return self.num_classes

    def identity(self) -> Tensor:
        """Slopes of 1."""
        return torch.ones(self.segments)

    def experts(self, logits: Tensor) -> Tensor:
        """The predicted class."""
        return winning_class(logits)

    def basis(self, gaps: Tensor, features: Tensor | None = None) -> Tensor:
        """How much of each stretch lies below the gap."""
        edges = torch.cat([gaps.new_zeros(1), self.knots.to(gaps), gaps.new_full((1,), torch.inf)]).view(-1, 1, 1)
        # As one clamp with two tensors of bounds this takes six times as long on a CPU.
        return torch.minimum(gaps.unsqueeze(1), edges[1:]).sub_(edges[:-1]).relu_()

    @torch.no_grad()
    def look(self, features: Tensor, weight: Tensor) -> bool:
        """Put the knots at quantiles of the gaps, as long as the slopes of every map are equal: knots do not matter."""
        if self.segments == 1 or not bool((self.coefficients == self.coefficients[:, :1]).all()):
            return False
        gaps = features[: self.num_classes]
        information = weight * (-gaps).softmax(0) * (1 - (-gaps).softmax(0))  # (C, k)
        losers = gaps > 0
        self.knots.copy_(weighted_quantiles(gaps[losers], information[losers], self.segments))
        return True


def weighted_quantiles(values: Tensor, weight: Tensor, parts: int) -> Tensor:
    """Values that cut the weight into equal parts ``(parts - 1,)``; 1, 2, 4, ... where there are none to cut.

    Example:
        >>> weighted_quantiles(torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.ones(4), 2)
        tensor([2.])
    """
    order = values.argsort()
    mass = weight[order].cumsum(0)
    if len(values) == 0 or not mass[-1] > 0:
        return 2.0 ** torch.arange(parts - 1)
    cuts = mass[-1] * torch.arange(1, parts, device=mass.device) / parts
    place = torch.searchsorted(mass, cuts.to(mass)).clamp(max=len(mass) - 1)
    return values[order][place]
