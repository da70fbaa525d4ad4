"""Intervals against scipy, plain loops and enumeration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_calib.experiment.statistics import (
    clustered_bootstrap,
    intervals,
    percentile_interval,
    point_estimate,
    two_level_bootstrap,
)
from tests.references.bootstrap import clustered_loop, two_level_exact, two_level_loop

QUANTILES = [2.5, 25, 50, 75, 97.5]


def columns(seed=0, sizes=(11, 13, 9), repeat_effect=0.4):
    rng = np.random.default_rng(seed)
    return [rng.gamma(2.0, 0.3, n) + repeat_effect * rng.standard_normal() for n in sizes]


def tables(parts):
    return [part[:, None] for part in parts]


def test_one_repeat_is_the_bootstrap_of_scipy():
    values = columns(sizes=(40,))[0]
    ours = percentile_interval(two_level_bootstrap([values[:, None]], 20_000, seed=1))
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    noise = values.std() / np.sqrt(len(values)) * 0.05
    assert abs(ours[0][0] - theirs.low) < noise
    assert abs(ours[1][0] - theirs.high) < noise


def test_the_replicates_have_the_exact_distribution():
    parts = [np.array([0.0, 1.0]), np.array([2.0, 5.0])]
    replicates = np.round(two_level_bootstrap(tables(parts), 40_000, seed=3)[:, 0], 12)
    exact = two_level_exact(parts)
    assert set(np.unique(replicates)) == set(exact)
    for value, chance in exact.items():
        error = np.sqrt(chance * (1 - chance) / len(replicates))
        assert abs(np.mean(replicates == value) - chance) < 4.5 * error


@pytest.mark.parametrize("undefined", [False, True])
def test_the_replicates_agree_with_plain_loops(undefined):
    parts = columns()
    if undefined:
        parts[0][3] = parts[2][:4] = np.nan
    ours = two_level_bootstrap(tables(parts), 6000, seed=4)[:, 0]
    slow = two_level_loop(parts, 6000, seed=5)
    noise = 0.08 * ours.std()
    np.testing.assert_allclose(np.percentile(ours, QUANTILES), np.percentile(slow, QUANTILES), atol=2 * noise)
    assert stats.ks_2samp(ours, slow).pvalue > 1e-3


def test_groups_are_drawn_as_wholes_within_repeats():
    """Groups of unequal size, in mixed order, against plain loops; cases apart would give half the spread."""
    names = [list("aabbbacccdd"), list("abcabcabcdddd"), list("aaaabbbbc")]
    levels = {"a": 0.0, "b": 1.0, "c": 3.0, "d": -1.0}
    parts = [part + [levels[name] for name in own] for part, own in zip(columns(), names, strict=True)]
    parts[1][2] = np.nan
    ours = two_level_bootstrap(tables(parts), 6000, seed=8, clusters=names)[:, 0]
    slow = two_level_loop(parts, 6000, seed=9, names=names)
    assert stats.ks_2samp(ours, slow).pvalue > 1e-3
    assert ours.std() == pytest.approx(slow.std(), rel=0.05)
    assert ours.std() > 1.3 * two_level_bootstrap(tables(parts), 6000, seed=8).std()


@given(st.integers(0, 2**32 - 1))
def test_groups_of_one_case_change_nothing(seed):
    parts = tables(columns(seed=seed))
    names = [[f"case{n}" for n in np.random.default_rng(seed).permutation(len(part))] for part in parts]
    grouped, plain = two_level_bootstrap(parts, 50, seed, names), two_level_bootstrap(parts, 50, seed)
    np.testing.assert_array_equal(grouped, plain)


def test_clustered_replicates_agree_with_plain_loops():
    parts = columns(sizes=(8, 8, 8))
    rng = np.random.default_rng(0)
    names = [sorted(rng.choice(list("abcdefghijkl"), 8, replace=False)) for _ in parts]
    ours = clustered_bootstrap(tables(parts), names, 6000, seed=6, draw_repeats=False)[:, 0]
    slow = clustered_loop(parts, names, 6000, seed=7)
    assert stats.ks_2samp(ours, slow).pvalue > 1e-3
    assert ours.std() == pytest.approx(slow.std(), rel=0.05)


def test_drawn_repeats_add_their_own_share_of_the_variance():
    """Cases alike: what is left is the bootstrap of three repeat means, whose variance is known."""
    levels = np.array([0.0, 1.0, 5.0])
    parts = [np.full((4, 1), level) for level in levels]
    names = [list("abcd")] * 3
    assert clustered_bootstrap(parts, names, 200, draw_repeats=False).std() == 0
    crossed = clustered_bootstrap(parts, names, 40_000)[:, 0]
    assert crossed.var() == pytest.approx(levels.var() / 3, rel=0.03)
    assert crossed.mean() == pytest.approx(levels.mean(), abs=0.02)


def test_drawing_repeats_widens_the_interval_when_repeats_differ():
    parts = columns(repeat_effect=2.0)
    low, high = percentile_interval(two_level_bootstrap(tables(parts), 4000))
    apart = [two_level_bootstrap([part[:, None]], 4000) for part in parts]
    cases_only = percentile_interval(np.mean(apart, axis=0))
    assert high[0] - low[0] > 3 * (cases_only[1][0] - cases_only[0][0])


def test_recurring_cases_widen_the_clustered_interval():
    """Three copies of the same repeat hold the information of one."""
    values = columns(sizes=(30,))[0][:, None]
    names = [[f"case{n}" for n in range(30)]] * 3
    one = clustered_bootstrap([values], names[:1], 4000).std()
    copies = clustered_bootstrap([values] * 3, names, 4000).std()
    assert copies == pytest.approx(one, rel=1e-9)
    naive = np.mean([two_level_bootstrap([values], 4000, seed=s) for s in range(3)], axis=0).std()
    assert copies > 1.5 * naive


def test_the_estimate_is_the_mean_of_repeat_means():
    parts = [np.array([[1.0, np.nan], [3.0, 4.0]]), np.array([[8.0, np.nan]])]
    np.testing.assert_array_equal(point_estimate(parts), [5.0, 4.0])
    assert np.isnan(point_estimate([np.full((2, 1), np.nan)])[0])


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_columns_share_their_draws(seed, width):
    """A column has the same replicates alone as in company, so differences are paired."""
    rng = np.random.default_rng(seed)
    wide = [rng.standard_normal((5, width + 1)), rng.standard_normal((7, width + 1))]
    together = two_level_bootstrap(wide, 50, seed)
    alone = two_level_bootstrap([table[:, [width]] for table in wide], 50, seed)
    np.testing.assert_allclose(together[:, [width]], alone, rtol=0, atol=1e-12)
    shifted = two_level_bootstrap([table + 3.0 for table in wide], 50, seed)
    np.testing.assert_allclose(shifted, together + 3.0, atol=1e-12)


def test_constant_scores_have_an_interval_of_no_width():
    found = intervals(np.array([0.25]), two_level_bootstrap([np.full((6, 1), 0.25)] * 3, 200))[0]
    assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)


def test_a_score_without_values_has_no_interval():
    low, high = percentile_interval(two_level_bootstrap([np.array([[1.0, np.nan], [2.0, np.nan]])], 50))
    assert np.isnan(low[1])
    assert np.isnan(high[1])
    assert low[0] <= high[0]


def test_the_seed_decides():
    parts = tables(columns())
    np.testing.assert_array_equal(two_level_bootstrap(parts, 100, 1), two_level_bootstrap(parts, 100, 1))
    assert (two_level_bootstrap(parts, 100, 1) != two_level_bootstrap(parts, 100, 2)).any()


def test_pieces_of_replicates_are_all_there(monkeypatch):
    monkeypatch.setattr("lightning_calib.experiment.statistics._DRAWS", 50)
    replicates = two_level_bootstrap(tables(columns()), 101)
    assert replicates.shape == (101, 1)
    assert np.isfinite(replicates).all()


def test_bad_tables_are_refused_by_name():
    with pytest.raises(ValueError, match="one repeat or more"):
        two_level_bootstrap([])
    with pytest.raises(ValueError, match="repeat 1 has no test cases"):
        two_level_bootstrap([np.ones((3, 1)), np.ones((0, 1))])
    with pytest.raises(ValueError, match=r"repeat 1 has scores of shape \(3, 2\)"):
        two_level_bootstrap([np.ones((3, 1)), np.ones((3, 2))])
    for bootstrap in (two_level_bootstrap, clustered_bootstrap):
        with pytest.raises(ValueError, match=r"clusters name \[2\] cases by repeat, the tables have \[3\]"):
            bootstrap([np.ones((3, 1))], clusters=[["a", "b"]])
