"""Stacks: convex mixtures of calibrated maps on one pooling."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.base import Calibrator, FittedBy, LooksAt, seen_by
from lightning_calib.calibrators.temperature import Identity
from lightning_calib.functional.cones import Cone
from lightning_calib.functional.features import pick
from lightning_calib.functional.simplex import log_mixture, nearest_on_simplex, on_simplex

_WEAKEST_FIRST: tuple[Cone | None, ...] = (None, "argmax", "order")
_WIDEST_FIRST: tuple[LooksAt, ...] = ("features", "neighbourhood", "voxel")


class Stack(Calibrator):
    r"""Mixture of calibrated probabilities (stacking, van der Laan, Polley & Hubbard 2007).

    .. math:: \log \sum_k w_k q_k, \qquad w \ge 0, \; \sum_k w_k = 1

    A mixture keeps what all of its parts keep: it is translation invariant if they are, and preserves the weakest of
    what they preserve. These facts belong to the instance; those of the class hold for any stack. With the identity
    among the parts, its negative log-likelihood exceeds that of no calibration by at most ``-log w_identity``, at every
    voxel. ETS is the stack of a temperature, the identity and the uniform distribution.

    Weights are stored as they are: negative ones count as 0 and the rest is normalised.

    Args:
        num_classes: ``C``.
        spatial_dims: 2 or 3.
        parts: fitted calibrators of these classes, the identity by default. All weight is on the first one at first;
            :meth:`of` takes weights.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> stack = Stack.of([Identity(3), build("cms_ap", 3), build("dc", 3)], [0.5, 0.5, 0.0])
        >>> [part.name for part in stack.parts], stack.translation_invariant, stack.preserves
        (['identity', 'cms_ap'], True, 'argmax')
        >>> round(stack.excess_bound, 3)
        0.693
    """

    name: ClassVar[str] = "stack"
    description = "a mixture of calibrated probabilities"
    translation_invariant = False
    solver: ClassVar[FittedBy] = "stacking"

    def __init__(self, num_classes: int, spatial_dims: int = 2, parts: Sequence[Calibrator] = ()) -> None:
        super().__init__(num_classes, spatial_dims)
        parts = parts or [Identity(num_classes, spatial_dims)]
        for part in parts:
            if (part.num_classes, part.spatial_dims) != (num_classes, spatial_dims):
                raise ValueError(
                    f"a stack of {num_classes} classes in {spatial_dims}D cannot take {part.name} of "
                    f"{part.num_classes} classes in {part.spatial_dims}D"
                )
        self.parts = nn.ModuleList(parts)
        self.weights = nn.Parameter(torch.eye(len(parts))[0])
        self.translation_invariant = all(part.translation_invariant for part in parts)
        self.preserves = min((part.preserves for part in parts), key=_WEAKEST_FIRST.index)
        looks = {part.looks_at for part in parts}
        self.looks_at = next((kind for kind in _WIDEST_FIRST if kind in looks), "voxel")
        self.feature_names = tuple(dict.fromkeys(name for part in parts for name in part.feature_names))

    @classmethod
    def of(cls, parts: Sequence[Calibrator], weights: Iterable[float]) -> Self:
        """The stack of these parts by these weights; parts of weight 0 are left out."""
        kept = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight > 0]
        if not kept:
            raise ValueError("a stack needs a part of positive weight")
        first = kept[0][0]
        stack = cls(first.num_classes, first.spatial_dims, [part for part, _ in kept])
        with torch.no_grad():
            stack.weights.copy_(torch.tensor([weight for _, weight in kept], dtype=torch.float64))
        return stack

    def mixture(self) -> Tensor:
        """The weights ``(K,)`` on the simplex."""
        return on_simplex(self.weights)

    @property
    def identity_weight(self) -> float:
        """Weight of the identity; 0 where it is not among the parts."""
        weights = self.mixture().tolist()
        return float(sum(w for w, part in zip(weights, self.parts, strict=True) if isinstance(part, Identity)))

    @property
    def excess_bound(self) -> float:
        """Most that the negative log-likelihood of a voxel can exceed that without calibration."""
        weight = self.identity_weight
        return -math.log(weight) if weight > 0 else math.inf

    def start(self, logits: Tensor) -> Tensor:
        """Logits as they are: each part does to them what it needs."""
        return logits

    def calibrate(self, logits: Tensor) -> Tensor:
        """Log of the mixture of the parts' probabilities."""
        return log_mixture(torch.stack([part.apply_to(logits) for part in self._parts()]), self.mixture())

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Calibrated log-probabilities ``(B, C, *S)``; each part gets those of the features ``(B, F, *S)`` it names."""
        if self.looks_at != "features":
            return super().forward(logits)
        self.check_input(logits)
        if features is None:
            raise ValueError(f"a part of the stack looks at features: call it with {', '.join(self.feature_names)}")
        own = [pick(features, self.feature_names, part.feature_names) for part in self._parts()]
        done = [part(logits, *seen_by(part, maps)) for part, maps in zip(self._parts(), own, strict=True)]
        mixed = log_mixture(torch.stack(done), self.mixture())
        return self.finish(mixed, logits.to(mixed.dtype))

    def apply_to(self, logits: Tensor) -> Tensor:
        """Chunks of voxels where all parts look at voxels alone, whole images otherwise."""
        if self.looks_at == "voxel":
            return super().apply_to(logits)
        return self.finish(self.calibrate(logits), logits)

    @torch.no_grad()
    def project_(self) -> None:
        """Put the weights on the simplex, at the nearest point of it, and the parts' parameters into their bounds."""
        self.weights.copy_(nearest_on_simplex(self.weights))
        for part in self._parts():
            part.project_()

    @property
    def num_identifiable(self) -> int:
        """Those of the parts, and all weights but one: they sum to one."""
        return sum(part.num_identifiable for part in self._parts()) + len(self.parts) - 1

    def options(self) -> dict[str, Any]:
        """The parts."""
        return {"parts": self._parts()}

    def extra_repr(self) -> str:
        """Facts for ``print``, the weights included."""
        shown = ", ".join(
            f"{part.name} {w:.3g}" for part, w in zip(self._parts(), self.mixture().tolist(), strict=True)
        )
        return f"{super().extra_repr()}, weights: {shown}"

    def _parts(self) -> list[Calibrator]:
        return list(self.parts)  # type: ignore[arg-type]  # a ModuleList does not say what it holds


def towards_identity(calibrator: Calibrator, weight: float) -> Stack:
    """A calibrator mixed with no calibration, which has this weight.

    Example:
        >>> from lightning_calib.calibrators.temperature import TemperatureScaling
        >>> towards_identity(TemperatureScaling(3), 0.25).weights.tolist()
        [0.75, 0.25]
    """
    identity = Identity(calibrator.num_classes, calibrator.spatial_dims)
    return Stack.of([calibrator, identity], [1 - weight, weight])
