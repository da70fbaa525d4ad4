"""Figures that mathematics predicts: the sampling floor, and an integral for a temperature of two."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from lightning_calib import functional as F

SPREAD = 3.0


def binary_logits(count, seed=0):
    """Two-class logits (count, 2) whose difference is N(0, SPREAD²), and labels drawn from their softmax."""
    g = torch.Generator().manual_seed(seed)
    difference = SPREAD * torch.randn(count, generator=g)
    logits = torch.stack([torch.zeros(count), difference], dim=1)
    return logits, (torch.rand(count, generator=g) < difference.sigmoid()).long()


def test_labels_drawn_from_the_prediction_give_the_sampling_floor():
    """A bin of n calibrated voxels has a gap of about sqrt(2 / pi * sum p (1 - p)) / n by chance."""
    logits, target = binary_logits(200_000)
    log_probs = logits.log_softmax(1)
    confidence = log_probs.exp().amax(1).double()
    spread = torch.zeros(50, dtype=torch.float64)
    spread.index_add_(0, F.bin_index(confidence, 50), confidence * (1 - confidence))
    floor = math.sqrt(2 / math.pi) * spread.sqrt().sum().item() / len(target)
    error = F.expected_calibration_error(log_probs, target).item()
    assert 0.5 * floor < error < 1.5 * floor
    assert floor < 0.004


def test_temperature_two_gives_the_error_of_an_integral():
    """Confidence sigmoid(|d| / 2), accuracy sigmoid(|d|): the gap never changes sign, so bins do not matter."""
    logits, target = binary_logits(400_000)
    error = F.expected_calibration_error((logits / 2).log_softmax(1), target).item()

    def gap(d):
        return 2 * norm.pdf(d, scale=SPREAD) * (1 / (1 + math.exp(-d)) - 1 / (1 + math.exp(-d / 2)))

    expected, _ = quad(gap, 0, 60)
    assert error == pytest.approx(expected, abs=0.003)
    assert expected > 0.1


def test_halves_of_both_signs_do_not_cancel():
    """One half 0.2 too sure, the other 0.2 too unsure: two bins see it, one bin does not."""
    log_probs = torch.tensor([[0.9, 0.1]] * 100 + [[0.6, 0.4]] * 100).log()
    target = torch.tensor([0] * 70 + [1] * 30 + [0] * 80 + [1] * 20)
    assert F.expected_calibration_error(log_probs, target).item() == pytest.approx(0.2)
    assert F.average_calibration_error(log_probs, target).item() == pytest.approx(0.2)
    assert F.expected_calibration_error(log_probs, target, num_bins=1).item() == pytest.approx(0, abs=1e-7)
