"""Calibrators with a temperature for each voxel that is a smooth function of numbers around it."""

from torch import Tensor

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.functional.cones import Cone


class TemperatureField(Calibrator):
    r"""A temperature for each voxel, whatever function of its inputs it is.

    .. math:: q_v = S(z_v / T(x_v))

    All classes of a voxel share ``T > 0``, so that their order stays. Because ``T`` of a voxel depends on its row of
    ``num_inputs`` numbers ``x_v`` alone, a fit can work on a sample of voxels with their rows: solver ``lbfgs``.

    A subclass gives :meth:`inputs_at`, :meth:`temperature_at`, :meth:`first_layer` and :meth:`start_at_`.
    """

    solver = "lbfgs"
    preserves: Cone | None = "order"
    monotone = True
    searched = ("weight_decay",)

    @property
    def num_inputs(self) -> int:
        """Numbers of a voxel that its temperature depends on, ``R``."""
        raise NotImplementedError

    def inputs_at(self, logits: Tensor, index: Tensor, features: Tensor | None = None) -> Tensor:
        """Inputs ``(k, R)`` of voxels of an image.

        Args:
            logits: ``(C, *S)``, or a list of voxels ``(C, N)`` for those that do not look at neighbours.
            index: places of the voxels in the flat image ``(k,)``.
            features: ``(F, *S)``, for those that look at them.
        """
        raise NotImplementedError

    def temperature_at(self, inputs: Tensor) -> Tensor:
        """Temperatures ``(k,)`` of inputs ``(k, R)``."""
        raise NotImplementedError

    def first_layer(self) -> tuple[Tensor, Tensor]:
        """Weight ``(K, ...)`` and bias ``(K,)`` of the affine map that :meth:`temperature_at` begins with."""
        raise NotImplementedError

    def start_at_(self, temperature: float) -> None:
        """Be ``T`` everywhere; only asked of a calibrator at the identity."""
        raise NotImplementedError
