"""The calibrators by name."""

from lightning_calib.calibrators.affine import (
    ConstrainedMatrixScaling,
    DirichletCalibration,
    MatrixScaling,
    VectorScaling,
)
from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.conditional import (
    ArgmaxPreservingScaling,
    ConditionalDirichletCalibration,
    OrderPreservingScaling,
)
from lightning_calib.calibrators.local import CanonicalLocalTemperatureScaling, LocalTemperatureScaling
from lightning_calib.calibrators.temperature import EnsembleTemperatureScaling, Identity, TemperatureScaling

CALIBRATORS: dict[str, type[Calibrator]] = {
    calibrator.name: calibrator
    for calibrator in (
        Identity,
        TemperatureScaling,
        EnsembleTemperatureScaling,
        VectorScaling,
        MatrixScaling,
        ConstrainedMatrixScaling,
        DirichletCalibration,
        LocalTemperatureScaling,
        CanonicalLocalTemperatureScaling,
        ConditionalDirichletCalibration,
        ArgmaxPreservingScaling,
        OrderPreservingScaling,
    )
}


def calibrator_class(name: str) -> type[Calibrator]:
    """Class of a registered name; a wrong name lists the right ones.

    Example:
        >>> calibrator_class("ts").__name__
        'TemperatureScaling'
    """
    if name not in CALIBRATORS:
        raise ValueError(f"unknown calibrator {name!r}; choose one of {', '.join(CALIBRATORS)}")
    return CALIBRATORS[name]


def build(name: str, num_classes: int, spatial_dims: int = 2, **options: str | int | bool) -> Calibrator:
    """Calibrator by name, at the identity.

    Args:
        name: key of ``CALIBRATORS``.
        num_classes: ``C``.
        spatial_dims: 2 or 3.
        **options: further arguments of the class, such as ``parametrization`` of CMS; a wrong one is a
            ``TypeError``.

    Example:
        >>> build("cms_op", num_classes=5).num_optimized
        130
    """
    return calibrator_class(name)(num_classes, spatial_dims, **options)
