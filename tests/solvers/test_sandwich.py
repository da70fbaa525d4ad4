"""Intervals of temperatures: derivatives, coverage, effective numbers of groups."""

import math

import numpy as np
import pytest
import torch

from lightning_calib.solvers.sandwich import temperature_derivatives, temperature_interval


def test_derivatives_are_those_of_autograd():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 20, generator=generator, dtype=torch.float64)
    target = torch.randint(4, (20,), generator=generator)
    theta = torch.tensor(1 / 1.7, dtype=torch.float64, requires_grad=True)
    slope, curvature = temperature_derivatives(logits, target, 1.7)
    for voxel in range(20):
        loss = -(theta * logits[:, voxel]).log_softmax(0)[target[voxel]]
        (first,) = torch.autograd.grad(loss, theta, create_graph=True)
        (second,) = torch.autograd.grad(first, theta)
        assert slope[voxel].item() == pytest.approx(first.item(), abs=1e-12)
        assert curvature[voxel].item() == pytest.approx(second.item(), abs=1e-12)


def test_groups_with_temperatures_of_their_own_are_covered():
    """Each group has its own optimum ``theta_g``; the interval must hold the mean of their population."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(400):
        own = rng.normal(0.5, 0.05, 8)  # theta = 1/T
        curvature = rng.uniform(0.5, 1.5, 8)
        theta = (curvature * own).sum() / curvature.sum()
        found = temperature_interval(1 / theta, torch.tensor(curvature * (theta - own)), torch.tensor(curvature))
        covered.append(found.low < 2.0 < found.high)
    assert 0.92 < np.mean(covered) <= 0.99


def test_one_group_with_all_the_curvature_counts_as_one():
    curvature = torch.tensor([1.0, 1e-6, 1e-6, 1e-6])
    found = temperature_interval(1.0, torch.zeros(4), curvature)
    assert found.effective_groups == pytest.approx(1, abs=1e-6)
    equal = temperature_interval(1.0, torch.ones(4), torch.ones(4))
    assert equal.effective_groups == pytest.approx(4)


def test_nothing_is_known_from_one_group():
    found = temperature_interval(1.5, torch.zeros(1), torch.ones(1))
    assert (found.low, found.high, found.log_error) == (0.0, math.inf, math.inf)
