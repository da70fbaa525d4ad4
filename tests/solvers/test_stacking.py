"""Weights of stacks: the optimum over the simplex, exact zeros, the certificate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.solvers.stacking import NEGLIGIBLE, fit_weights
from tests.references.fitting import mixture_weights


def drawn(seed, parts, voxels, kind="usual"):
    """Log-probabilities (K, n) of labels, and weights of the voxels."""
    rng = np.random.default_rng(seed)
    log_q = np.log(rng.beta(2, 0.7, size=(parts, voxels)))
    if kind == "sure":  # every part is now and then certain, and wrong
        log_q = np.where(rng.random((parts, voxels)) < 0.1, -500 * rng.random((parts, voxels)), 0.1 * log_q)
    if kind == "alike":
        log_q = log_q[:1] + 0.01 * log_q
    return log_q, rng.random(voxels) * (rng.random(voxels) < 0.9) + 1e-3


def nll(log_q, voxels, weights):
    shift = log_q.max(axis=0)
    return float(-np.average(np.log(np.asarray(weights) @ np.exp(log_q - shift)) + shift, weights=voxels))


@pytest.mark.parametrize("kind", ["usual", "sure", "alike"])
@pytest.mark.parametrize(("parts", "voxels"), [(2, 40), (5, 300), (7, 2000)])
def test_it_is_the_optimum_that_scipy_finds(parts, voxels, kind):
    log_q, weights = drawn(parts, parts, voxels, kind)
    found, expected = fit_weights(log_q, weights), mixture_weights(log_q, weights)
    assert found.nll == pytest.approx(nll(log_q, weights, found.weights), abs=1e-12)
    assert abs(found.nll - nll(log_q, weights, expected)) < 1e-6
    np.testing.assert_allclose(found.weights, expected, atol=2e-2 if kind == "alike" else 2e-4)
    np.testing.assert_allclose(found.part_nll, [nll(log_q, weights, row) for row in np.eye(parts)])


@given(
    seed=st.integers(0, 10**6),
    parts=st.integers(1, 7),
    voxels=st.integers(1, 60),
    kind=st.sampled_from(["usual", "sure", "alike"]),
    floor=st.sampled_from([0.0, 0.2, 0.9]),
)
@settings(max_examples=60)
def test_no_point_of_the_simplex_is_better_than_the_gap_says(seed, parts, voxels, kind, floor):
    log_q, weights = drawn(seed, parts, voxels, kind)
    found = fit_weights(log_q, weights, floor)
    assert sum(found.weights) == pytest.approx(1, abs=1e-12)
    assert min(found.weights) >= 0
    assert found.weights[0] >= floor
    assert found.gap <= 2 * NEGLIGIBLE
    rng = np.random.default_rng(seed)
    others = floor * np.eye(parts)[0] + (1 - floor) * rng.dirichlet(np.ones(parts), size=20)
    near = (1 - 1e-3) * np.asarray(found.weights) + 1e-3 * others
    for other in (*others, *near):
        assert nll(log_q, weights, other) >= found.nll - found.gap - 1e-12


def test_zeros_are_exact():
    log_q, weights = drawn(0, 3, 200)
    worse = np.vstack([log_q, log_q[1:] - 0.5])  # never better than another part
    found = fit_weights(worse, weights)
    assert found.weights[3:] == (0.0, 0.0)
    assert min(found.weights[:3]) > 0
    np.testing.assert_allclose(found.weights[:3], fit_weights(log_q, weights).weights, atol=1e-6)


def test_of_parts_that_say_the_same_the_first_is_kept():
    log_q, weights = drawn(1, 3, 200)
    noise = 1e-9 * np.random.default_rng(0).normal(size=log_q.shape)
    found = fit_weights(np.vstack([log_q, log_q + noise]), weights)
    assert found.weights[3:] == (0.0, 0.0, 0.0)
    assert fit_weights(np.zeros((4, 9))).weights == (1.0, 0.0, 0.0, 0.0)


def test_voxels_count_by_their_weights():
    log_q, _ = drawn(2, 4, 50)
    times = np.random.default_rng(0).integers(0, 4, size=50)
    repeated = fit_weights(np.repeat(log_q, times, axis=1))
    np.testing.assert_allclose(fit_weights(log_q, times).weights, repeated.weights, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3),), r"must be \(parts, voxels\), got the shape \(3,\)"),
        ((np.zeros((2, 3)), np.ones(2)), r"3 voxels need as many weights, got the shape \(2,\)"),
        ((np.zeros((2, 3)), np.zeros(3)), "at least 0, and one of them above"),
        ((np.array([[0.0, 0.0], [0.0, -np.inf]]),), "got -inf of part 1 at voxel 1"),
        ((np.zeros((2, 3)), None, 1.0), "floor = 1.0: give a weight"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_weights(*arguments)
