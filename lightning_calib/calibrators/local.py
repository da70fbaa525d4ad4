"""Local temperature scaling: a temperature for each voxel, predicted from the logits around it."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.base import LooksAt, below_top
from lightning_calib.calibrators.field import TemperatureField
from lightning_calib.functional.convolution import (
    DILATION,
    convolve_by_phases,
    convolve_last,
    neighbour_places,
    reflected,
)

KERNEL = 5
PADDING = DILATION * (KERNEL // 2)
NUM_LEAVES, NUM_GATES = 4, 3

MIN_TEMPERATURE = 0.01
# softplus of this is 0.99: with leaves of 1 the temperature is 0.01 + 0.99 = 1.
_SOFTPLUS_START = math.log(math.expm1(1 - MIN_TEMPERATURE))

# Equal gates would give all leaves the same gradient and the gates none, for ever: seven convolutions as one.
GATE_START_STD = 0.01


class LocalTemperatureScaling(TemperatureField):
    r"""Temperature map from a tree of gated convolutions (Ding et al. 2021, ``logits`` branch).

    Seven convolutions ``C -> 1`` (kernel 5, dilation 2, reflection padding) give four leaves ``t_k`` and three
    gates ``s_k`` in (0, 1):

    .. math::
        a = t_1 s_1 + t_2 (1 - s_1), \quad b = t_3 s_2 + t_4 (1 - s_2), \quad t = a s_3 + b (1 - s_3)

        T = 0.01 + \mathrm{softplus}(t - 1 + \log(e^{0.99} - 1)), \qquad q = S(z / T)

    Leaves start at 1 and gates near one half, so that ``T = 1``. The published code starts all seven
    convolutions at zero, where the leaves receive equal gradients and the gates none: it trains one convolution.

    On volumes the convolutions stay in a plane: each slice along ``through_plane`` is an image.

    Args:
        num_classes: ``C``.
        spatial_dims: 2, or 3 for volumes ``(B, C, D, H, W)``.
        canonical: feed log-probabilities to the convolutions instead of raw logits; this makes the calibrator
            translation invariant.
        through_plane: spatial axis of a volume that the convolutions leave alone (0 for ``D``).

    Example:
        >>> calibrator = LocalTemperatureScaling(3, canonical=True)
        >>> calibrator.temperature_map(torch.randn(1, 3, 8, 8)).shape
        torch.Size([1, 1, 8, 8])
    """

    name: ClassVar[str] = "lts"
    description = "local temperature scaling: a temperature for each voxel, from the scores around it"
    translation_invariant: bool = False
    looks_at: LooksAt = "neighbourhood"

    def __init__(
        self, num_classes: int, spatial_dims: int = 2, canonical: bool = False, through_plane: int = 0
    ) -> None:
        super().__init__(num_classes, spatial_dims)
        if not 0 <= through_plane < 3:
            raise ValueError(f"through_plane is a spatial axis of a volume, 0, 1 or 2; got {through_plane}")
        self.canonical = canonical
        self.through_plane = through_plane
        self.translation_invariant = canonical
        self.convolutions = nn.Conv2d(num_classes, NUM_LEAVES + NUM_GATES, KERNEL, dilation=DILATION)
        nn.init.zeros_(self.convolutions.weight)
        assert self.convolutions.bias is not None
        nn.init.zeros_(self.convolutions.bias)
        with torch.no_grad():
            self.convolutions.weight[NUM_LEAVES:].normal_(std=GATE_START_STD)

    def temperature_map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Temperature map ``(B, 1, *S)`` of logits ``(B, C, *S)``."""
        field = logits.log_softmax(dim=1) if self.canonical else logits
        weight = self.convolutions.weight.to(logits.dtype)
        bias = None if self.convolutions.bias is None else self.convolutions.bias.to(logits.dtype)
        slices = reflected(self._to_slices(field), PADDING)  # (N, C, H + 8, W + 8)
        if torch.is_grad_enabled() and weight.requires_grad and weight.device.type == "cpu":
            maps = convolve_by_phases(slices, weight, bias)  # (N, 7, H, W)
        else:
            maps = convolve_last(slices, weight, bias)
        return self._from_slices(self._tree(maps).unsqueeze(1), logits)

    @property
    def num_inputs(self) -> int:
        """Scores of ``C`` classes at 25 places."""
        return self.num_classes * KERNEL**2

    def inputs_at(self, logits: Tensor, index: Tensor, features: Tensor | None = None) -> Tensor:
        """What the convolutions see around voxels of an image ``(C, *S)``, in the order of their weights."""
        if logits.ndim != 1 + self.spatial_dims:
            raise ValueError(f"{self.name} looks at neighbours: give images, got the shape {tuple(logits.shape)}")
        axes = tuple(axis for axis in range(logits.ndim - 1) if self.spatial_dims == 2 or axis != self.through_plane)
        places = neighbour_places(index, tuple(logits.shape[1:]), axes, KERNEL)  # (k, 25)
        found = logits.flatten(1).index_select(1, places.flatten())  # (C, 25 k)
        if self.canonical:
            found = (found - found.amax(dim=0)).log_softmax(dim=0)
        return torch.unflatten(found, 1, (-1, KERNEL**2)).movedim(1, 0).flatten(1)

    def temperature_at(self, inputs: Tensor) -> Tensor:
        """The seven convolutions as one product."""
        weight, bias = self.convolutions.weight.flatten(1).to(inputs), self.convolutions.bias
        assert bias is not None
        maps = torch.addmm(bias.to(inputs).unsqueeze(1), weight, inputs.T)  # (7, k): rows in one piece
        return self._tree(maps.unsqueeze(0))[0]

    def first_layer(self) -> tuple[Tensor, Tensor]:
        """Weight ``(7, C, 5, 5)`` and bias ``(7,)`` of the convolutions."""
        assert self.convolutions.bias is not None
        return self.convolutions.weight, self.convolutions.bias

    @torch.no_grad()
    def start_at_(self, temperature: float) -> None:
        """Leaves at the temperature; the gates stay as they are."""
        assert self.convolutions.bias is not None
        above = max(temperature, 2 * MIN_TEMPERATURE) - MIN_TEMPERATURE
        self.convolutions.bias[:NUM_LEAVES] = above + math.log1p(-math.exp(-above)) - _SOFTPLUS_START

    def _tree(self, maps: Tensor) -> Tensor:
        """Temperatures ``(N, *S)`` of leaves and gates ``(N, 7, *S)``."""
        leaves, gates = 1 + maps[:, :NUM_LEAVES], maps[:, NUM_LEAVES:].sigmoid()
        left = torch.lerp(leaves[:, 1], leaves[:, 0], gates[:, 0])
        right = torch.lerp(leaves[:, 3], leaves[:, 2], gates[:, 1])
        root = torch.lerp(right, left, gates[:, 2])
        return MIN_TEMPERATURE + nn.functional.softplus(root - 1 + _SOFTPLUS_START)

    def apply_to(self, logits: Tensor) -> Tensor:
        """Scale each voxel by its own temperature; the neighbourhood rules out chunks of voxels."""
        if logits.ndim != 2 + self.spatial_dims:
            raise ValueError(
                f"local temperature scaling with spatial_dims={self.spatial_dims} needs logits with "
                f"{2 + self.spatial_dims} axes, got the shape {tuple(logits.shape)}"
            )
        temperature = self.temperature_map(below_top(logits) if self.canonical else logits)
        parts = list(self.chunks(logits.flatten(2)))
        temperatures = torch.split(temperature.flatten(2), [part.shape[-1] for part in parts], dim=-1)
        pairs = zip(parts, temperatures, strict=True)
        # Softmax and the division do not mind that the largest is at 0.
        done = [self.finish((below_top(part) / own).log_softmax(dim=1), part) for part, own in pairs]
        return torch.cat(done, dim=-1).view(logits.shape)

    def _to_slices(self, field: Tensor) -> Tensor:
        """Images of a volume: ``(B, C, D, H, W)`` to ``(B D, C, H, W)``."""
        if self.spatial_dims == 2:
            return field
        return field.movedim(2 + self.through_plane, 1).flatten(0, 1)

    def _from_slices(self, slices: Tensor, logits: Tensor) -> Tensor:
        """Undo :meth:`_to_slices` for a single channel."""
        if self.spatial_dims == 2:
            return slices
        return torch.unflatten(slices, 0, (logits.shape[0], -1)).movedim(1, 2 + self.through_plane)


class CanonicalLocalTemperatureScaling(LocalTemperatureScaling):
    """Local temperature scaling on log-probabilities, translation invariant: ``canonical`` is always on.

    Example:
        >>> CanonicalLocalTemperatureScaling(2).num_optimized
        357
    """

    name: ClassVar[str] = "lts_ti"
    description = "local temperature scaling from log-probabilities, which makes it translation invariant"
    translation_invariant: bool = True

    def __init__(self, num_classes: int, spatial_dims: int = 2, through_plane: int = 0) -> None:
        super().__init__(num_classes, spatial_dims, canonical=True, through_plane=through_plane)
