"""Features that calibrators look at, asked for where a task's batches or a case come from."""

from collections.abc import Sequence
from typing import Any

from pytorch_lightning import LightningModule
from torch import Tensor

from lightning_calib.calibrators.base import Calibrator, seen_by
from lightning_calib.outputs.stored_cases import StoredCases


def ask_for_features(task: LightningModule, names: Sequence[str]) -> None:
    """Have the data module of a task's Trainer put features into its batches, in this order.

    Lightning makes loaders after tasks are set up. A data module that does not know features is left alone.

    Args:
        task: whose ``setup`` calls this.
        names: keys of :mod:`lightning_calib.functional.features`.
    """
    data: Any = getattr(task.trainer, "datamodule", None)
    if hasattr(data, "feature_names"):
        data.feature_names = tuple(names)


def calibrate_case(calibrator: Calibrator, cases: StoredCases, case_id: str) -> Tensor:
    """Calibrated log-probabilities ``(1, C, *S)`` of a stored case."""
    features = cases.feature_batch(case_id, calibrator.feature_names)
    log_probs: Tensor = calibrator(cases.pooled(case_id)[None], *seen_by(calibrator, features))
    return log_probs
