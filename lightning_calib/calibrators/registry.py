"""The calibrators by name: ours, those of other packages, those of a script, dotted paths."""

import re
from pathlib import Path
from typing import Any, TypeVar

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.kit.registry import Registry, refuse_strange

Kind = TypeVar("Kind", bound=type[Calibrator])

_OURS = {
    "identity": "temperature:Identity",
    "ts": "temperature:TemperatureScaling",
    "ets": "temperature:EnsembleTemperatureScaling",
    "vs": "affine:VectorScaling",
    "ms": "affine:MatrixScaling",
    "ms_c": "affine:ConstrainedMatrixScaling",
    "dc": "affine:DirichletCalibration",
    "lts": "local:LocalTemperatureScaling",
    "lts_ti": "local:CanonicalLocalTemperatureScaling",
    "cdc": "conditional:ConditionalDirichletCalibration",
    "cms_ap": "conditional:ArgmaxPreservingScaling",
    "cms_op": "conditional:OrderPreservingScaling",
    "gs": "splines:GapSplines",
    "fts": "features:FeatureTemperatureScaling",
    "fts_pooled": "features:PooledFeatureTemperatureScaling",
    "case_ts": "features:CaseTemperatureScaling",
    "case_ts_pooled": "features:PooledCaseTemperatureScaling",
    "fts_net": "feature_net:FeatureNetworkScaling",
    "stack": "stack:Stack",
}


def _check(name: str, thing: Any) -> None:  # noqa: ANN401
    if not (isinstance(thing, type) and issubclass(thing, Calibrator)):
        raise ValueError(f"the calibrator {name} must be a subclass of Calibrator, got {thing!r}")
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        raise ValueError(f"{name!r} cannot stand in a pipeline; give {thing.__name__} a name such as my_scaling")


CALIBRATORS: Registry[type[Calibrator]] = Registry(
    "calibrator",
    "lightning_calib.calibrators",
    {name: f"lightning_calib.calibrators.{place}" for name, place in _OURS.items()},
    _check,
)


def register_calibrator(calibrator: Kind) -> Kind:
    """Make a class of one's own known by its ``name``, for pipelines and files; usable as a decorator."""
    CALIBRATORS.register(getattr(calibrator, "name", repr(calibrator)), calibrator)
    return calibrator


def registered_name(calibrator: type[Calibrator]) -> str:
    """The name by which a class is known in this process; its dotted path where it is not.

    Example:
        >>> registered_name(CALIBRATORS["ts"])
        'ts'
    """
    if calibrator.name in CALIBRATORS and CALIBRATORS[calibrator.name] is calibrator:
        return calibrator.name
    path = f"{calibrator.__module__}.{calibrator.__qualname__}"
    return next((name for name, known in CALIBRATORS.registered.items() if known is calibrator), path)


def named_in(file: str | Path, name: str) -> type[Calibrator]:
    """The class of a name that a file holds: unlike ``CALIBRATORS[name]``, it imports no module of others."""
    if name not in CALIBRATORS:
        refuse_strange(name, file)
    try:
        return CALIBRATORS[name]
    except ValueError as problem:
        raise ValueError(f"{file}: {problem}; install or register what offers it") from None


def build(name: str, num_classes: int, spatial_dims: int = 2, **options: Any) -> Calibrator:
    """Calibrator by name, at the identity.

    Args:
        name: key of ``CALIBRATORS``, or a dotted path such as ``mypackage.MyCalibrator``.
        num_classes: ``C``.
        spatial_dims: 2 or 3.
        **options: further arguments of the class, such as ``parametrization`` of CMS; a wrong one is a
            ``TypeError``.

    Example:
        >>> build("cms_op", num_classes=5).num_optimized
        130
    """
    return CALIBRATORS[name](num_classes, spatial_dims, **options)
