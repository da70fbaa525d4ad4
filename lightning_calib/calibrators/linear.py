"""Calibrators whose scores are linear in convex coordinates: what Newton's method fits."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.functional.ordering import inverse_permutation


@dataclass(frozen=True)
class LinearInput:
    """What a linear calibrator sees of a chunk of voxels, whatever its parameters are.

    Attributes:
        features: ``x (B, R, n)``; of an affine calibrator ``R = C``, and scores are ``W x + b`` in canonical order.
        expert: which parameters each voxel uses, ``(B, n)``, or ``None`` where there is only one set.
        permutation: canonical order ``(B, C, n)`` with ``features = gather(logits, permutation)``, or ``None``
            where classes stay in place. Class ``y`` sits at the position ``k`` with ``permutation[k] = y``.
        places: that position of each class ``(B, C, n)``.
    """

    features: Tensor
    expert: Tensor | None = None
    permutation: Tensor | None = None
    places: Tensor | None = None


class LinearCalibrator(Calibrator):
    """Calibrator whose scores are linear in some coordinates, with one set of them or one for each expert.

    Attributes:
        coordinates: ``module:class`` of its convex coordinates, a subclass of ``solvers.coordinates.Coordinates``,
            with which ``newton`` fits it; without them ``adam`` does.
    """

    coordinates: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that names coordinates and no solver is fitted by newton."""
        super().__init_subclass__(**options)
        if "coordinates" in vars(cls) and "solver" not in vars(cls):
            cls.solver = "newton" if cls.coordinates else "adam"

    @property
    def num_experts(self) -> int:
        """``E``."""
        raise NotImplementedError

    def inputs(self, logits: Tensor, features: Tensor | None = None) -> LinearInput:
        """What it sees of logits ``(B, C, n)`` that went through :meth:`start`, and of features ``(B, F, n)``."""
        return LinearInput(logits)

    def labelled(
        self, logits: Tensor, target: Tensor, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What a fit sees: features and expert of :meth:`inputs`, and where labels stand in canonical order.

        Args:
            logits: ``(B, C, n)`` that went through :meth:`start`.
            target: labels ``(B, n)``.
            features: ``(B, F, n)``, for those that look at them.
        """
        view = self.inputs(logits) if features is None else self.inputs(logits, features)
        if view.permutation is None:
            return view.features, view.expert, target
        return view.features, view.expert, inverse_permutation(view.permutation).gather(1, target.unsqueeze(1))[:, 0]

    def look(self, features: Tensor, weight: Tensor) -> bool:
        """Before a fit: set what the calibrator takes from the data beside its coordinates.

        Args:
            features: what :meth:`inputs` gave for a sample of voxels ``(R, k)``.
            weight: how many voxels each of them stands for ``(k,)``.

        Returns:
            Whether anything was set. The function that the calibrator is at that time must stay the same.
        """
        return False
