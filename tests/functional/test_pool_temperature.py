"""The temperature that calibrated members imply is the one that labels give."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from lightning_calib.functional.pool_temperature import HIGHEST, LOWEST, mean_entropy, pool_temperature

NOISE = {-1: 1, 0: 2, 1: 1}  # how often each error of a member comes
TRUTH = {-2: (1, 7), -1: (2, 6), 0: (4, 4), 1: (7, 1), 2: (6, 2)}  # how often label 0 and 1 come at each signal


def population(members):
    """Scores that are posteriors of a small world, by enumeration: log-probabilities (M, 2, n) and labels (2, n)."""
    posterior = {}
    for signal, counts in TRUTH.items():
        for error, often in NOISE.items():
            found = posterior.setdefault(signal + error, np.zeros(2))
            found += often * np.array(counts)
    scores, labels = [], []
    for signal, counts in TRUTH.items():
        for errors in itertools.product(NOISE, repeat=members):
            often = int(np.prod([NOISE[error] for error in errors]))
            seen = np.stack([posterior[signal + error] / posterior[signal + error].sum() for error in errors])
            scores += often * [np.log(seen)]
            labels += often * [np.array(counts) / sum(counts)]
    return torch.from_numpy(np.stack(scores, axis=2)), np.stack(labels, axis=1)


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_it_is_the_best_temperature_of_a_known_world(members):
    scores, labels = population(members)
    pooled = scores.mean(0).numpy()

    def nll(log_temperature):
        shown = pooled / np.exp(log_temperature)
        return -(labels * (shown - np.logaddexp(*shown))).sum(0).mean()

    best = np.exp(minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10}).x)
    assert pool_temperature(scores) == pytest.approx(best, rel=1e-6)
    assert (best < 0.97) == (members > 1)


@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 10**6))
def test_members_that_agree_have_one_and_others_less(members, classes, seed):
    rng = torch.Generator().manual_seed(seed)
    alone = torch.randn(1, classes, 50, generator=rng).log_softmax(1)
    assert pool_temperature(alone.expand(members, -1, -1)) == pytest.approx(1, abs=1e-5)
    several = torch.cat([alone, torch.randn(members, classes, 50, generator=rng).log_softmax(1)])
    assert LOWEST <= pool_temperature(several) < 1
    assert pool_temperature(several.flip(0)) == pytest.approx(pool_temperature(several))


def test_the_ends_and_certain_networks():
    sure = torch.tensor([[[0.0], [-200.0]], [[-200.0], [0.0]]])
    assert mean_entropy(sure) == pytest.approx(0)
    assert pool_temperature(sure) in (LOWEST, HIGHEST)  # they contradict each other, and none is in doubt
    assert np.isfinite(pool_temperature(torch.tensor([[[0.0], [-torch.inf]]]).clamp(min=-1e4)))
