"""Calibrators of other libraries, each fitted on voxels ``(n, C)`` and returned as a function to log_probs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

LogProbs = Callable[[Tensor], Tensor]


def torch_uncertainty(name: str, logits: Tensor, target: Tensor) -> LogProbs:
    from torch_uncertainty.post_processing import DirichletScaler, MatrixScaler, TemperatureScaler, VectorScaler

    num_classes = logits.shape[1]
    kinds = {"ts": TemperatureScaler, "vs": VectorScaler, "ms": MatrixScaler, "dc": DirichletScaler}
    scaler = kinds[name]() if name == "ts" else kinds[name](num_classes=num_classes)
    data = torch.utils.data.TensorDataset(logits, target)
    scaler.fit(torch.utils.data.DataLoader(data, batch_size=None, sampler=[slice(None)]), progress=False)
    return lambda voxels: scaler(voxels).detach().log_softmax(1)


def probmetrics(name: str, logits: Tensor, target: Tensor) -> LogProbs:
    from probmetrics.calibrators import (
        MatrixScalingCalibrator,
        TemperatureScalingCalibrator,
        VectorScalingCalibrator,
    )
    from probmetrics.distributions import CategoricalLogits

    kinds = {"ts": TemperatureScalingCalibrator, "vs": VectorScalingCalibrator, "ms": MatrixScalingCalibrator}
    calibrator = kinds[name]()
    calibrator.fit_torch(CategoricalLogits(logits), target)
    return lambda voxels: calibrator.predict_proba_torch(CategoricalLogits(voxels)).get_logits().log_softmax(1)


def netcal(name: str, logits: Tensor, target: Tensor) -> LogProbs:
    from netcal.scaling import LogisticCalibration, TemperatureScaling

    calibrator = TemperatureScaling() if name == "ts" else LogisticCalibration()
    # Given float32 it ends where it starts, without a word.
    calibrator.fit(logits.double().softmax(1).numpy(), target.numpy())

    def log_probs(voxels: Tensor) -> Tensor:
        probs = torch.from_numpy(calibrator.transform(voxels.double().softmax(1).numpy()))
        if probs.ndim == 1:  # two classes: the probability of the second one
            probs = torch.stack([1 - probs, probs], dim=1)
        return probs.clamp(min=1e-30).log()

    return log_probs


def scikit_learn(name: str, logits: Tensor, target: Tensor) -> LogProbs:
    from sklearn.linear_model import LogisticRegression

    def features(voxels: Tensor) -> Tensor:
        return voxels if name == "ms" else voxels.log_softmax(1)

    model = LogisticRegression(C=float("inf"), max_iter=200).fit(features(logits).numpy(), target.numpy())
    return lambda voxels: torch.from_numpy(model.predict_log_proba(features(voxels).numpy()))


def fiducio(optimizer: str, name: str, logits: Tensor, target: Tensor) -> LogProbs:
    import fiducio as library

    kinds = {"ts": "TS", "ets": "ETS", "vs": "VS", "ms": "MS", "ms_c": "MSc"}
    kinds |= {"dc": "DC", "cdc": "CDC", "cms_ap": "CMSap", "cms_op": "CMSop"}
    calibrator = getattr(library, kinds[name])(optimizer=optimizer).fit(logits, target)
    return lambda voxels: calibrator.decision_function(voxels).log_softmax(1)


@contextmanager
def counted_passes() -> Iterator[list[int]]:
    """Counts evaluations of the loss by libraries that use torch's, each of all voxels."""
    passes, loss = [0], torch.nn.functional.cross_entropy

    def counting(*values: Tensor, **options: object) -> Tensor:
        passes[0] += 1
        return loss(*values, **options)

    with patch.object(torch.nn.functional, "cross_entropy", counting):
        yield passes


_PAPER = ("ts", "ets", "vs", "ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op")

PEERS: dict[str, tuple[Callable[[str, Tensor, Tensor], LogProbs], tuple[str, ...]]] = {
    "TorchUncertainty": (torch_uncertainty, ("ts", "vs", "ms", "dc")),
    "probmetrics": (probmetrics, ("ts", "vs", "ms")),
    "net:cal": (netcal, ("ts", "vs")),
    "scikit-learn": (scikit_learn, ("ms", "dc")),
    "Fiducio": (partial(fiducio, "adam"), _PAPER),
    "Fiducio, L-BFGS": (partial(fiducio, "lbfgs"), _PAPER),
}
