"""Other libraries where definitions agree, and each place where they do not, with the reason."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from lightning_calib import functional as F

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:monai"
)


@pytest.fixture(scope="module")
def sample():
    """Fifty thousand voxels of five classes, over- and underconfident."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(50_000, 5, generator=g)
    gumbel = -torch.empty(logits.shape).exponential_(generator=g).log()
    sharpness = torch.linspace(0.4, 2.5, len(logits))[:, None]
    return (logits * sharpness).log_softmax(1), (logits + gumbel).argmax(1)


@pytest.mark.parametrize("bins", [15, 50])
def test_torchmetrics_agrees_below_a_million_voxels(sample, bins):
    log_probs, target = sample
    theirs = multiclass_calibration_error(log_probs.exp(), target, num_classes=5, n_bins=bins)
    assert F.expected_calibration_error(log_probs, target, bins).item() == pytest.approx(theirs.item(), abs=1e-5)
    largest = multiclass_calibration_error(log_probs.exp(), target, 5, n_bins=bins, norm="max")
    assert F.maximum_calibration_error(log_probs, target, bins).item() == pytest.approx(largest.item(), abs=1e-4)


def test_netcal_agrees(sample):
    from netcal.metrics import ACE, ECE, MCE

    log_probs, target = sample
    probs, labels = log_probs.exp().double().numpy(), target.numpy()
    assert F.expected_calibration_error(log_probs, target, 15).item() == pytest.approx(
        ECE(15).measure(probs, labels), abs=1e-6
    )
    assert F.average_calibration_error(log_probs, target, 15).item() == pytest.approx(
        ACE(15).measure(probs, labels), abs=1e-6
    )
    assert F.maximum_calibration_error(log_probs, target, 15).item() == pytest.approx(
        MCE(15).measure(probs, labels), abs=1e-6
    )


def test_monai_agrees_class_by_class_on_a_small_image(sample):
    from monai.metrics import CalibrationErrorMetric, CalibrationReduction

    log_probs, target = (values[:10_000] for values in sample)
    onehot = torch.nn.functional.one_hot(target, 5).T[None].float()
    metric = CalibrationErrorMetric(num_bins=20, calibration_reduction=CalibrationReduction.EXPECTED)
    metric(log_probs.exp().T[None], onehot)
    theirs = metric.aggregate().mean().item()
    assert F.classwise_calibration_error(log_probs, target, 20).item() == pytest.approx(theirs, abs=1e-5)


def test_torchmetrics_puts_certainty_into_a_phantom_bin():
    """Voxels of confidence 1.0 leave the last bin there; ours keeps [14/15, 1] as one bin.

    Half the voxels have confidence 0.96 and are always right, half are certain and right in 96 %: together the
    last bin is calibrated, apart both halves are off by 0.04.
    """
    confidence = torch.tensor([0.96] * 500 + [1.0] * 500, dtype=torch.float64)
    correct = torch.tensor([1] * 500 + [1] * 480 + [0] * 20)
    log_probs = torch.stack([1 - confidence, confidence], dim=1).log()
    ours = F.expected_calibration_error(log_probs, correct, num_bins=15).item()
    theirs = multiclass_calibration_error(log_probs.exp(), correct, num_classes=2, n_bins=15).item()
    assert ours == pytest.approx(0, abs=1e-9)
    assert theirs == pytest.approx(0.04, abs=1e-5)


def test_torchmetrics_loses_count_in_float32_sums():
    """Ten million perfectly calibrated voxels look badly calibrated there; int64 and float64 sums are exact."""
    confidence = torch.full((10_000_000,), 0.75)
    labels = torch.ones(len(confidence), dtype=torch.int64)
    labels[::4] = 0
    theirs = binary_calibration_error(confidence, labels, n_bins=15, validate_args=False).item()
    table = F.BinTable.of(F.bin_index(confidence, 15), labels == 1, confidence.double(), 15)
    assert theirs > 0.05
    assert table.expected_error().item() == 0


def test_average_and_adaptive_error_are_different_metrics():
    """Some libraries mean the *adaptive* error (bins of equal mass) by ACE; ours averages equal-width bins.

    A rare group that is sure of nothing and always wrong fills one of two bins of equal width, and the tenth
    part of one bin of equal mass.
    """
    confidence = torch.tensor([0.55] * 10 + [0.99] * 1490, dtype=torch.float64)
    correct = torch.tensor([0] * 10 + [1] * 1475 + [0] * 15)
    log_probs = torch.stack([1 - confidence, confidence], dim=1).log()
    parts = np.array_split(np.arange(1500), 15)
    adaptive = np.mean([abs(confidence.numpy()[p].mean() - correct.numpy()[p].mean()) for p in parts])
    assert F.average_calibration_error(log_probs, correct).item() > 0.27
    assert adaptive < 0.03
