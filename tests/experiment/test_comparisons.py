"""Paired comparisons and Holm's correction."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.experiment.comparisons import compare, holm, holm_factors, improvement_probability, two_sided_p
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
    assert found[0].two_level.high < 0
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
    assert (found.two_level.low, found.two_level.high) == (low[0], high[0])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=8),
    st.sampled_from([19, 99, 399]),
    st.integers(0, 2**16),
)
def test_intervals_and_verdicts_never_contradict_each_other(shifts, replicates, seed):
    """0 is outside the interval exactly where the verdict is clear, and on the side that the verdict says."""
    rng = np.random.default_rng(seed)
    parts = {key(candidate=str(n)): [rng.normal(shift, 1.0, 30) for _ in range(3)] for n, shift in enumerate(shifts)}
    for found in compare(parts, dict.fromkeys(parts, NAMES), replicates=replicates, seed=seed):
        outside = {"better": found.difference.high < 0, "worse": found.difference.low > 0}
        assert outside == {verdict: found.verdict == verdict for verdict in outside}
        assert found.difference.low <= found.difference.mean <= found.difference.high or found.verdict != "within noise"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.sampled_from([0.05, 0.2]))
def test_holm_rejects_by_its_factors_what_it_rejects_by_its_p_values(counts, error):
    p_values = [2 * count / 400 for count in counts]
    by_factor = [factor * p < error for factor, p in zip(holm_factors(p_values, error), p_values, strict=True)]
    assert by_factor == [p < error for p in holm(p_values)]


def test_p_values_agree_with_the_interval():
    """0 leaves the 95 % interval where p passes 0.05."""
    replicates = np.arange(-25.0, 975.0)
    assert two_sided_p(replicates) == pytest.approx(2 * 27 / 1001)
    assert improvement_probability(replicates) == pytest.approx(0.0255)
