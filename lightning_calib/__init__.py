"""Trustworthy confidences for segmentation ensembles.

The names below are loaded when they are first used, so that ``import lightning_calib`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lightning_calib.api import (
        Calibration,
        Experiment,
        Results,
        calibrate,
        from_arrays,
        import_nnunet,
        load_model,
        load_results,
        open_regions,
    )
    from lightning_calib.calibrators import Calibrator, register_calibrator
    from lightning_calib.calibrators.fiducio import from_fiducio, to_fiducio
    from lightning_calib.callbacks.predictions import StorePredictions, store_outputs
    from lightning_calib.deployment import CalibratedEnsemble
    from lightning_calib.deployment.learn import control, structures, threshold
    from lightning_calib.executors.base import Executor, register_executor
    from lightning_calib.experiment.tracking.trackers import register_tracker
    from lightning_calib.metrics.score import Score, register_score
    from lightning_calib.outputs.store import OutputStore
    from lightning_calib.studies.base import Study, register_study

_PLACES = {
    "lightning_calib.api": (
        *("Calibration", "Experiment", "Results", "calibrate"),
        *("from_arrays", "import_nnunet", "load_model", "load_results", "open_regions"),
    ),
    "lightning_calib.calibrators": ("Calibrator", "register_calibrator"),
    "lightning_calib.calibrators.fiducio": ("from_fiducio", "to_fiducio"),
    "lightning_calib.callbacks.predictions": ("StorePredictions", "store_outputs"),
    "lightning_calib.deployment": ("CalibratedEnsemble",),
    "lightning_calib.deployment.learn": ("control", "structures", "threshold"),
    "lightning_calib.executors.base": ("Executor", "register_executor"),
    "lightning_calib.experiment.tracking.trackers": ("register_tracker",),
    "lightning_calib.metrics.score": ("Score", "register_score"),
    "lightning_calib.outputs.store": ("OutputStore",),
    "lightning_calib.studies.base": ("Study", "register_study"),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "CalibratedEnsemble",
    "Calibration",
    "Calibrator",
    "Executor",
    "Experiment",
    "OutputStore",
    "Results",
    "Score",
    "StorePredictions",
    "Study",
    "calibrate",
    "control",
    "from_arrays",
    "from_fiducio",
    "import_nnunet",
    "load_model",
    "load_results",
    "open_regions",
    "register_calibrator",
    "register_executor",
    "register_score",
    "register_study",
    "register_tracker",
    "store_outputs",
    "structures",
    "threshold",
    "to_fiducio",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"lightning_calib has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
