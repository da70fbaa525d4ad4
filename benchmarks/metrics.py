"""Metrics beside those of torchmetrics, MONAI, net:cal and Fiducio: seconds, memory and the figures themselves.

Run: python benchmarks/metrics.py [--quick]. Every library gets one thread, so that a busy machine does not
decide the ratios.
"""

import sys
import warnings
from collections.abc import Callable

import cv2
import edt
import fiducio
import numpy as np
import scipy.ndimage
import torch
import torchmetrics.functional.classification as peer
from _measure import Measured, anonymous_memory, markdown, settle, side_by_side
from monai.metrics import CalibrationErrorMetric, CalibrationReduction
from monai.transforms.utils import distance_transform_edt
from netcal.metrics import ECE
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot
from torchmetrics import MetricCollection
from torchmetrics.functional.segmentation import dice_score

from lightning_calib import functional as F
from lightning_calib import metrics as M
from lightning_calib.functional.boundary import boundary

warnings.simplefilter("ignore")


def make_image(shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Smooth regions, logits that lean to them, labels drawn from the softmax: log_probs, target, reference."""
    g = torch.Generator().manual_seed(0)
    region = torch.randint(0, classes, [max(1, n // 32) for n in shape], generator=g)
    for axis, length in enumerate(shape):
        index = torch.linspace(0, region.shape[axis] - 1e-3, length).long()
        region = region.index_select(axis, index)
    log_probs = torch.randn(1, classes, *shape, generator=g)
    log_probs.scatter_add_(1, region[None, None], torch.full((1, 1, *shape), 4.0))
    log_probs = log_probs.log_softmax(1)
    gumbel = -torch.empty(log_probs.shape).exponential_(generator=g).log()
    target = (log_probs + gumbel).argmax(1)
    return log_probs, target, (log_probs + 0.1 * gumbel).argmax(1)


def ours_at_once(log_probs: Tensor, target: Tensor, reference: Tensor) -> float:
    """ECE, average error, NLL, Dice and flips (Brier, maximum error and the table come with them)."""
    s = F.image_statistics(log_probs, target, reference=reference)
    scores = [s.average_calibration_error(), s.negative_log_likelihood(), s.dice_score(), s.flip_rate()]
    assert all(score.isfinite() for score in scores)
    return s.expected_calibration_error(15).item()


def ours_as_classes(log_probs: Tensor, target: Tensor, reference: Tensor) -> float:
    """The same through the metric classes in their compute groups."""
    shared = {
        "ece": M.ExpectedCalibrationError(15),
        "ace": M.AverageCalibrationError(),
        "nll": M.NegativeLogLikelihood(),
        "dice": M.DiceScore(),
    }
    groups = [list(shared), ["flips"]]
    collection = MetricCollection(shared | {"flips": M.FlipRate()}, compute_groups=groups)
    collection.update(log_probs, target, reference=reference)
    return float(collection.compute()["ece"])


def torchmetrics_set(log_probs: Tensor, target: Tensor, reference: Tensor) -> float:
    """ECE, maximum error (it has no average error), NLL, Dice and flips with torchmetrics and torch."""
    classes = log_probs.shape[1]
    probs = log_probs.exp()
    error = peer.multiclass_calibration_error(probs, target, classes, n_bins=15, validate_args=False)
    peer.multiclass_calibration_error(probs, target, classes, n_bins=15, norm="max", validate_args=False)
    nll_loss(log_probs, target)
    prediction = probs.argmax(1)
    dice_score(prediction, target, classes, average="macro", input_format="index")
    (prediction != reference).double().mean()
    return error.item()


def monai_set(log_probs: Tensor, target: Tensor, reference: Tensor) -> float:
    """Class-wise ECE only: MONAI has no top-label error."""
    metric = CalibrationErrorMetric(num_bins=15, calibration_reduction=CalibrationReduction.EXPECTED)
    labels = one_hot(target, log_probs.shape[1]).movedim(-1, 1).float()
    metric(log_probs.exp(), labels)
    return metric.aggregate().mean().item()


def netcal_set(log_probs: Tensor, target: Tensor, reference: Tensor) -> float:
    """ECE only."""
    flat = log_probs.movedim(1, -1).reshape(-1, log_probs.shape[1]).exp().numpy()
    return float(ECE(15).measure(flat, target.flatten().numpy()))


def fiducio_set(log_probs: Tensor, target: Tensor, reference: Tensor) -> float:
    """ECE and ACE from one table of bins, NLL and Brier score."""
    probs = log_probs.exp()
    curve = fiducio.reliability_curve(probs, target, n_bins=15)
    fiducio.negative_log_likelihood(probs, target)
    fiducio.brier_score(probs, target)
    return curve.ece


SETS = {
    "lightning_calib, one pass: ECE ACE NLL Dice flips Brier MCE": ours_at_once,
    "lightning_calib, metric classes: the same": ours_as_classes,
    "torchmetrics: ECE MCE NLL Dice flips": torchmetrics_set,
    "MONAI: class-wise ECE": monai_set,
    "net:cal: ECE": netcal_set,
    "Fiducio: ECE ACE NLL Brier": fiducio_set,
}


def speed(title: str, shape: tuple[int, ...], classes: int, rounds: int) -> str:
    """Table of seconds and memory on one image."""
    image = make_image(shape, classes)
    tasks = {name: (lambda run=run: run(*image)) for name, run in SETS.items()}
    measured = side_by_side(tasks, rounds)
    first = next(iter(measured.values())).seconds
    rows = [
        [name, f"{m.seconds:.2f}", f"{m.seconds / first:.1f}", f"{m.mebibytes:.0f}", f"{m.value:.5f}"]
        for name, m in measured.items()
    ]
    header = [f"{title}, {classes} classes", "seconds", "times ours", "MiB above input", "ECE (true: about 0)"]
    return markdown(header, rows)


def exactness(count: int) -> str:
    """What each library says of perfectly calibrated voxels: confidence 3/4, three quarters right."""
    confidence = torch.tensor([0.25, 0.75]).log()
    log_probs = confidence.view(1, 2, 1).expand(1, 2, count)
    target = torch.ones(1, count, dtype=torch.int64)
    target[0, ::4] = 0
    probs = log_probs.exp()
    metric = CalibrationErrorMetric(num_bins=15, calibration_reduction=CalibrationReduction.EXPECTED)
    metric(probs, torch.stack([1 - target, target], dim=1).float())
    values = {
        "lightning_calib": F.expected_calibration_error(log_probs, target, 15).item(),
        "torchmetrics": peer.multiclass_calibration_error(probs, target, 2, 15, validate_args=False).item(),
        "MONAI (class-wise)": metric.aggregate().mean().item(),
        "net:cal": float(ECE(15).measure(probs[0].T.numpy(), target[0].numpy())),
        "Fiducio": fiducio.expected_calibration_error(probs, target, n_bins=15),
    }
    header = [f"{count / 1e6:.0f}M calibrated voxels", "ECE (true: 0)"]
    return markdown(header, [[name, f"{value:.6f}"] for name, value in values.items()])


def growth(images: int) -> str:
    """Memory that metrics keep after so many images of 512x512."""
    log_probs, target, _ = make_image((512, 512), 20)
    kept = {}
    theirs = peer_metric(20)
    for name, metric in {"lightning_calib": M.ExpectedCalibrationError(), "torchmetrics": theirs}.items():
        settle()
        start = anonymous_memory()
        for _ in range(images):
            metric.update(log_probs if name == "lightning_calib" else log_probs.exp(), target)
        settle()
        kept[name] = anonymous_memory() - start
    header = [f"kept after {images} images of 512x512", "MiB"]
    return markdown(header, [[name, f"{size:.1f}"] for name, size in kept.items()])


def peer_metric(classes: int) -> torch.nn.Module:
    from torchmetrics.classification import MulticlassCalibrationError

    return MulticlassCalibrationError(classes, n_bins=15, validate_args=False)


def distances(shape: tuple[int, ...], rounds: int) -> str:
    """Distance transforms: seconds, and the largest error beside scipy's float64 result."""
    rng = np.random.default_rng(0)
    smooth = scipy.ndimage.gaussian_filter(rng.normal(size=shape), 8)
    away = ~boundary(torch.from_numpy((smooth > 0).astype(np.int64))).numpy()
    tasks: dict[str, Callable[[], np.ndarray]] = {
        "edt": lambda: edt.edt(away, black_border=False, parallel=torch.get_num_threads()),
        "scipy": lambda: scipy.ndimage.distance_transform_edt(away),
        "MONAI": lambda: np.asarray(distance_transform_edt(torch.from_numpy(away)[None]))[0],
    }
    if len(shape) == 2:
        tasks["OpenCV, precise"] = lambda: cv2.distanceTransform(away.view(np.uint8), cv2.DIST_L2, 0)
        tasks["OpenCV, 5x5 mask"] = lambda: cv2.distanceTransform(away.view(np.uint8), cv2.DIST_L2, 5)
    measured: dict[str, Measured] = side_by_side(tasks, rounds)
    truth = measured["scipy"].value
    rows = [
        [name, f"{m.seconds:.3f}", f"{m.mebibytes:.0f}", f"{np.abs(m.value - truth).max():.1e}"]
        for name, m in measured.items()
    ]
    return markdown([f"distance transform {'x'.join(map(str, shape))}", "seconds", "MiB", "largest error"], rows)


def main(quick: bool) -> None:
    street, volume = ((256, 512), (60, 60, 40)) if quick else ((1024, 2048), (240, 240, 155))
    rounds = 1 if quick else 2
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    for run in SETS.values():
        run(*make_image((8, 8), 3))  # what libraries load at their first call
    tables = [
        speed("street scene " + "x".join(map(str, street)), street, 20, rounds),
        speed("volume " + "x".join(map(str, volume)), volume, 5, rounds),
        exactness(200_000 if quick else 20_000_000),
        growth(5 if quick else 40),
        distances(street, rounds),
        distances(volume, rounds),
    ]
    print("\n\n".join(tables))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
