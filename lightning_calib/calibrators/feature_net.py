"""Feature network temperature scaling: a temperature for each voxel, from a small network on features of it."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.base import LooksAt
from lightning_calib.calibrators.featured import FeaturedCalibrator
from lightning_calib.calibrators.field import TemperatureField
from lightning_calib.calibrators.temperature import MAX_TEMPERATURE
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.features import OF_CLASSES, OF_POOLED, check_features

HIDDEN = 16

# Features lie in [0, 1]: at this deviation hidden units bend within their range.
START_STD = 3.0

_BOUND = math.log(MAX_TEMPERATURE)


class FeatureNetworkScaling(FeaturedCalibrator, TemperatureField):
    r"""FTS with a hidden layer: features may act together, and by the predicted class.

    .. math::
        q = S(z / T), \qquad \frac1T = \exp\left(L \tanh \frac uL\right), \qquad
        u = c + \sum_{h=1}^H a_h \tanh\left(b_h + \sum_f W_{hf} \phi_f + V_{hw}\right)

    with the features ``\phi_f`` of the voxel (:mod:`lightning_calib.functional.features`), the class ``w`` that wins in
    the pooled map, and ``L = \log 1000``: ``T`` stays within [1e-3, 1e3]. All classes of a voxel share ``1/T > 0``,
    whatever the network is, so that their order stays; features and winner do not see a shift of the logits. It starts
    with ``a = 0`` and ``c = 0``, the identity, and with random ``W`` and ``V``. The fit is not convex: see
    :class:`~lightning_calib.solvers.sampled.SampledSolver`.

    By default it takes features that the pooled map has, so that no members' scores are needed.

    Args:
        num_classes: ``C``.
        spatial_dims: 2 or 3.
        feature_names: the features; by default all of voxels that need the pooled map only.
        num_hidden: ``H``, at least 1.

    Example:
        >>> calibrator = FeatureNetworkScaling(3, feature_names=["entropy"], num_hidden=2)
        >>> calibrator.num_optimized
        13
    """

    name: ClassVar[str] = "fts_net"
    description = "feature network temperature scaling: a temperature for each voxel, by a small network on features"
    looks_at: LooksAt = "features"
    usual_features: ClassVar[tuple[str, ...]] = (*OF_POOLED, *OF_CLASSES)

    def __init__(
        self,
        num_classes: int,
        spatial_dims: int = 2,
        feature_names: Sequence[str] | None = None,
        num_hidden: int = HIDDEN,
    ) -> None:
        if num_hidden < 1:
            raise ValueError(f"num_hidden must be at least 1, got {num_hidden}")
        super().__init__(num_classes, spatial_dims)
        self.feature_names = check_features(self.usual_features if feature_names is None else feature_names)
        self.num_hidden = num_hidden
        self.hidden, self.out = nn.Linear(self.num_inputs, num_hidden), nn.Linear(num_hidden, 1)
        nn.init.normal_(self.hidden.weight, std=START_STD)
        for start in (self.hidden.bias, self.out.weight, self.out.bias):
            nn.init.zeros_(start)

    def calibrate(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """``log S(z / T)``."""
        inverse = self._inverse(self._inputs(logits, features).transpose(1, 2)).unsqueeze(1)
        return (logits * inverse).log_softmax(dim=1)

    def temperature_map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Temperatures ``(B, 1, *S)`` of logits ``(B, C, *S)`` and features ``(B, F, *S)``."""
        wide = self.compute_dtype(logits)
        seen = self.checked(features, logits).to(wide).flatten(2)
        inputs = self._inputs(self.start(logits.to(wide).flatten(2)), seen)
        return (1 / self._inverse(inputs.transpose(1, 2))).view(logits.shape[0], 1, *logits.shape[2:])

    @property
    def num_inputs(self) -> int:
        """Features, and one for each class that may win."""
        return len(self.feature_names) + self.num_classes

    def inputs_at(self, logits: Tensor, index: Tensor, features: Tensor | None = None) -> Tensor:
        """Features and winner of voxels of an image ``(C, *S)``."""
        seen = self.checked(None if features is None else features.unsqueeze(0), logits.unsqueeze(0))
        scores, picked = (values.flatten(1).index_select(1, index).unsqueeze(0) for values in (logits, seen[0]))
        return self._inputs(self.start(scores), picked.to(scores))[0].T

    def temperature_at(self, inputs: Tensor) -> Tensor:
        """``T``."""
        return 1 / self._inverse(inputs)

    def first_layer(self) -> tuple[Tensor, Tensor]:
        """The hidden layer."""
        return self.hidden.weight, self.hidden.bias

    @torch.no_grad()
    def start_at_(self, temperature: float) -> None:
        """The constant alone."""
        inverse = min(max(-math.log(temperature) / _BOUND, -0.99), 0.99)
        self.out.bias.fill_(_BOUND * math.atanh(inverse))

    @property
    def voxel_values(self) -> int:
        """Features, classes twice, and hidden units."""
        return self.num_inputs + self.num_classes + self.num_hidden

    def _inputs(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """``(B, F + C, n)`` of logits ``(B, C, n)`` and features ``(B, F, n)``."""
        assert features is not None  # forward has made sure
        classes = torch.arange(self.num_classes, device=logits.device).view(1, -1, 1)
        return torch.cat([features, (winning_class(logits).unsqueeze(1) == classes).to(features)], dim=1)

    def _inverse(self, inputs: Tensor) -> Tensor:
        """``1/T (..., n)`` of inputs ``(..., n, F + C)``, with ``tanh u = 2 (s(2 u) - 1/2)``.

        The logistic function ``s`` takes a seventh of the time of ``tanh``.
        """
        (weight, bias), (out, constant) = (
            (layer.weight.to(inputs), layer.bias.to(inputs)) for layer in (self.hidden, self.out)
        )
        units = nn.functional.linear(inputs, 2 * weight, 2 * bias).sigmoid() - 0.5
        level = nn.functional.linear(units, 2 * out, constant).squeeze(-1)
        return (_BOUND * (level / _BOUND).tanh()).exp()
