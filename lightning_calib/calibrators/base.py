"""What every calibrator shares: input checks, precision, chunks of voxels, preservation, the penalty."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_calib.functional.cones import Cone
from lightning_calib.functional.devices import chunk_values
from lightning_calib.functional.features import make_features
from lightning_calib.functional.penalty import Reduction
from lightning_calib.functional.preservation import preserve
from lightning_calib.functional.shared import once
from lightning_calib.functional.voxels import CHUNK_VALUES

LooksAt = Literal["voxel", "neighbourhood", "features"]
FittedBy = Literal["newton", "slsqp", "lbfgs", "adam", "stacking"]

# Logits beyond this are refused: products with parameters would leave float32, and become NaN.
LARGEST = 1e30

_FINITE = ContextVar("finite", default=False)


def is_known_finite() -> bool:
    """Whether the caller has looked at the values (see :func:`known_finite`)."""
    return _FINITE.get()


@contextmanager
def known_finite() -> Iterator[None]:
    """Within, calibrators do not look for NaN: the caller has, once for all of them, and no device is waited for."""
    token = _FINITE.set(True)
    try:
        yield
    finally:
        _FINITE.reset(token)


class Calibrator(nn.Module):
    """Map from pooled logits to calibrated log-probabilities.

    ``forward`` takes logits ``(B, C, *S)`` with any number of spatial axes (also none) in float16, bfloat16,
    float32 or float64 and returns normalised log-probabilities of the same shape, in float32 or, where input or
    parameters are wider, in float64. Autocast is off inside. Every calibrator starts at the identity.

    A subclass sets the class facts and writes :meth:`calibrate`; translation-invariant ones get logits whose
    maximum is 0 at every voxel, so that an exact shift of the logits gives the same bits. Where ``preserves`` is
    set, the result is checked at every voxel and repaired in the last ulp where rounding broke the promise. Where a
    fact depends on the instance, its class says what holds for all and the constructor sets the instance's own.

    Attributes:
        name: key in the registry; a class that does not say it goes by its dotted path.
        description: what it is, in a few words without a full stop; by default the first line of the docstring.
        translation_invariant: whether adding a constant to all logits of a voxel changes nothing.
        preserves: what of the input's ranking is kept: ``"order"``, ``"argmax"`` or nothing.
        monotone: whether the result falls along the ranks of the logits in floating point too (by the same
            subtraction and division for all classes of a voxel, or by sums of what is 0 or more): order then cannot
            invert by rounding, only merge, and checking the argmax is enough.
        looks_at: what the probabilities of a voxel depend on: its own logits, those of its ``neighbourhood`` (it is
            then fitted on whole images), or further ``features``.
        conditional: whether each predicted class has an expert, parameters of its own.
        feature_names: the features that it looks at, in order, see :mod:`lightning_calib.functional.features`.
        solver: the solver that suits it; ``stacking`` where it is put together from others that were fitted.
        searched: hyperparameters that a search for ``lbfgs`` or ``adam`` draws beside the usual ones.

    Args:
        num_classes: ``C``, at least 2.
        spatial_dims: number of spatial axes of the images, 2 or 3; only spatial calibrators look at it.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    translation_invariant: bool = True
    preserves: Cone | None = None
    monotone: bool = False
    looks_at: LooksAt = "voxel"
    conditional: ClassVar[bool] = False
    feature_names: tuple[str, ...] = ()
    solver: ClassVar[FittedBy] = "adam"
    searched: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Fill in the facts that follow from others; a name or a description is never inherited."""
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = f"{cls.__module__}.{cls.__qualname__}"
        if "description" not in vars(cls):
            first_line = (cls.__doc__ or cls.__name__).strip().partition("\n")[0]
            cls.description = first_line.replace("`", "").rstrip(".")

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"a calibrator needs at least 2 classes, got num_classes={num_classes}")
        if spatial_dims not in (2, 3):
            raise ValueError(f"spatial_dims must be 2 or 3, got {spatial_dims}")
        self.num_classes = num_classes
        self.spatial_dims = spatial_dims

    def calibrate(self, logits: Tensor) -> Tensor:
        """Log-probabilities of logits ``(B, C, n)`` that are already in the precision of the computation."""
        raise NotImplementedError

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Calibrated log-probabilities ``(B, C, *S)`` of pooled logits ``(B, C, *S)``.

        Args:
            logits: pooled logits.
            features: further maps ``(B, F, *S)``, for those that look at them.
        """
        self.check_input(logits)
        with torch.autocast(logits.device.type, enabled=False):
            return self.apply_to(logits.to(self.compute_dtype(logits)))

    def apply_to(self, logits: Tensor) -> Tensor:
        """Calibrate voxel by voxel, in chunks; calibrators that look at neighbours replace this."""
        flat = logits.T.unsqueeze(0) if logits.ndim == 2 else logits.flatten(2)  # (B, C, n)
        done = [self.finish(self.calibrate(self.start(part)), part) for part in self.chunks(flat)]
        log_probs = done[0] if len(done) == 1 else torch.cat(done, dim=-1)
        return log_probs[0].T if logits.ndim == 2 else log_probs.reshape(logits.shape)

    def chunks(self, flat: Tensor) -> Iterator[Tensor]:
        """Views of ``(B, C, n)`` small enough for the temporaries of :meth:`calibrate`."""
        if torch.compiler.is_compiling():  # an exported graph cannot loop over an unknown size
            yield flat
            return
        values = chunk_values(flat.device, on_cpu=CHUNK_VALUES)
        size = max(1, values // (max(1, flat.shape[0]) * self.voxel_values))
        yield from torch.split(flat, size, dim=-1) if size < flat.shape[-1] else [flat]

    @property
    def voxel_values(self) -> int:
        """Numbers of a voxel that :meth:`calibrate` works with."""
        return self.num_classes

    def start(self, logits: Tensor) -> Tensor:
        """Subtract each voxel's maximum where the calibrator is translation invariant."""
        return below_top(logits) if self.translation_invariant else logits

    def finish(self, log_probs: Tensor, logits: Tensor) -> Tensor:
        """Mend what rounding broke of a declared preservation."""
        if self.preserves is None:
            return log_probs
        return preserve(log_probs, logits, "argmax" if self.monotone else self.preserves)

    def compute_dtype(self, logits: Tensor) -> torch.dtype:
        """float32, or float64 where the input or a parameter is."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        for parameter in self.parameters():
            dtype = torch.promote_types(dtype, parameter.dtype)
        return dtype

    def check_input(self, logits: Tensor) -> None:
        """Refuse what cannot be logits of this calibrator's classes."""
        expected = f"expected floating-point logits (B, {self.num_classes}, *S)"
        if logits.ndim < 2:
            raise ValueError(f"{expected}, got the shape {tuple(logits.shape)} without a class axis")
        if not logits.is_floating_point():
            raise ValueError(f"{expected}, got {logits.dtype}; convert with .float()")
        if logits.shape[1] != self.num_classes:
            raise ValueError(
                f"{expected}, got the shape {tuple(logits.shape)} with {logits.shape[1]} entries on axis 1; "
                f"is the class axis elsewhere, or was the calibrator built for other data?"
            )
        if not torch.compiler.is_compiling() and not is_known_finite():
            check_finite(logits)

    def temperature_map(self, logits: Tensor, features: Tensor | None = None) -> Tensor | None:
        """Temperatures ``(B, 1, *S)`` of logits ``(B, C, *S)``, where each voxel has its own."""
        return None

    def penalty(self, lam: float, mu: float, reduction: Reduction = "mean") -> Tensor:
        """Regulariser of the fit; nothing for calibrators without a matrix."""
        return torch.zeros((), dtype=torch.float32)

    @torch.no_grad()
    def project_(self) -> None:
        """Bring parameters back into their bounds after an optimiser's step."""

    @property
    def num_optimized(self) -> int:
        """Number of fitted scalars."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def num_identifiable(self) -> int:
        """Number of fitted scalars less the directions that softmax cannot see."""
        return self.num_optimized

    def options(self) -> dict[str, Any]:
        """Constructor arguments beyond the first two, from attributes of the same names; stored in files."""
        return {name: getattr(self, name) for name in list(signature(type(self)).parameters)[2:]}

    def extra_repr(self) -> str:
        """Facts for ``print``."""
        return (
            f"num_classes={self.num_classes}, translation_invariant={self.translation_invariant}, "
            f"preserves={self.preserves}"
        )


def seen_by(calibrator: Calibrator, features: Tensor | None) -> tuple[Tensor | None, ...]:
    """What a call of a calibrator takes after the logits: the features, where it looks at them.

    Example:
        >>> seen_by(Calibrator(2), torch.ones(1, 1, 4))
        ()
    """
    return (features,) if calibrator.looks_at == "features" else ()


def features_of(calibrator: Calibrator, pooled: Tensor, members: Tensor | None = None) -> Tensor | None:
    """Features ``(B, F, *S)`` that a calibrator looks at, made of scores; None where it looks at none.

    Args:
        calibrator: says which.
        pooled: pooled logits ``(B, C, *S)``.
        members: members' logits ``(B, M, C, *S)``; only some features need them.
    """
    return make_features(calibrator.feature_names, pooled, members) if calibrator.feature_names else None


@once
def below_top(logits: Tensor) -> Tensor:
    """Scores with the largest of each voxel at 0.

    Example:
        >>> below_top(torch.tensor([[1.0, 3.0]]))
        tensor([[-2.,  0.]])
    """
    return logits - logits.amax(dim=1, keepdim=True)


@once
def log_softmax(logits: Tensor) -> Tensor:
    """``log S(z)`` over the classes ``(B, C, ...)``.

    Example:
        >>> log_softmax(torch.zeros(1, 2)).exp()
        tensor([[0.5000, 0.5000]])
    """
    return logits.log_softmax(dim=1)


def check_finite(logits: Tensor) -> None:
    """Refuse NaN, infinite and astronomic logits; a device is waited for once.

    Example:
        >>> check_finite(torch.tensor([[0.0, torch.nan]]))
        Traceback (most recent call last):
        ...
        ValueError: logits must be finite, got nan at (0, 1) and 0 more such values; look for float16 overflow or ...
    """
    ends = torch.stack(torch.aminmax(logits.detach())).float() if logits.numel() else torch.zeros(2)
    if bool((ends.abs() <= LARGEST).all()):  # NaN reaches both
        return
    bad = (~(logits.double().abs() <= LARGEST)).nonzero()
    value = logits[tuple(bad[0])].item()
    kind = f"within {LARGEST:g}" if math.isfinite(value) else "finite"
    raise ValueError(
        f"logits must be {kind}, got {value} at {tuple(bad[0].tolist())} and {len(bad) - 1} more such values; "
        "look for float16 overflow or log(0) where they were made"
    )
