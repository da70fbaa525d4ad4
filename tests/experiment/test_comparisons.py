"""Paired comparisons and Holm's correction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.experiment.comparisons import compare, holm, improvement_probability, two_sided_p
from lightning_calib.experiment.statistics import percentile_interval, two_level_bootstrap

NAMES = [[f"case{n}" for n in range(30)]] * 3


def test_holm_by_hand():
    """4 x .005, 3 x .01, 2 x .02, and the last is no smaller than the one before."""
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_definition(p_values):
    ranked = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(ranked):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = so_far
    assert holm(p_values) == pytest.approx(adjusted)


def key(metric="nll", candidate="dc(z)"):
    return ("translation invariance", "ms(z)", candidate, metric)


def test_a_clear_difference_is_found_and_a_vague_one_is_noise():
    rng = np.random.default_rng(0)
    clear = [rng.normal(-1.0, 0.3, 30) for _ in range(3)]
    vague = [rng.normal(0.0, 0.3, 30) for _ in range(3)]
    found = compare({key(): clear, key(candidate="ms_c(z)"): vague}, {key(): NAMES, key(candidate="ms_c(z)"): NAMES})
    assert [c.verdict for c in found] == ["better", "within noise"]
    assert found[0].improvement == 1.0
    assert found[0].difference.high < 0
    assert found[0].clustered.high < 0
    assert found[0].p_holm == pytest.approx(2 * found[0].p_value)


def test_higher_dice_is_better_and_lower_worse():
    rise = [np.full(30, 0.1) + np.random.default_rng(r).normal(0, 0.01, 30) for r in range(3)]
    up, down = compare(
        {key("dice"): rise, key("dice", "ms_c(z)"): [-part for part in rise]},
        {key("dice"): NAMES, key("dice", "ms_c(z)"): NAMES},
        replicates=2000,
    )
    assert (up.verdict, down.verdict) == ("better", "worse")
    assert (up.improvement, down.improvement) == (1.0, 0.0)
    worse = compare({key("nll"): rise}, {key("nll"): NAMES}, replicates=2000)[0]
    assert worse.verdict == "worse"


def test_no_difference_at_all_is_within_noise():
    same = compare({key(): [np.zeros(30)] * 3}, {key(): NAMES}, replicates=100)[0]
    assert (same.verdict, same.p_value, same.improvement) == ("within noise", 1.0, 0.5)


def test_the_interval_is_that_of_the_differences():
    rng = np.random.default_rng(1)
    parts = [rng.normal(0.1, 1.0, 30) for _ in range(3)]
    found = compare({key(): parts}, {key(): NAMES}, replicates=500, seed=3)[0]
    low, high = percentile_interval(two_level_bootstrap([part[:, None] for part in parts], 500, 3))
    assert (found.difference.low, found.difference.high) == (low[0], high[0])


def test_p_values_agree_with_the_interval():
    """0 leaves the 95 % interval where p passes 0.05."""
    replicates = np.arange(-25.0, 975.0)
    assert two_sided_p(replicates) == pytest.approx(2 * 27 / 1001)
    assert improvement_probability(replicates) == pytest.approx(0.0255)
