"""The ladder on tables with a known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from lightning_calib.experiment.selection.ladder import (
    ALPHA,
    LADDER,
    HeldOut,
    HeldOutPath,
    climb,
    climb_without_each,
    ladder_order,
)
from lightning_calib.experiment.selection.statistics import (
    corrected_error,
    group_gain,
    groups_needed,
    one_sided_p,
    strongest_within,
)

PATH = (math.inf, 1.0, 0.1)
DIFFERENCES = arrays(np.float64, st.integers(5, 12), elements=st.floats(-3, 3))


def table(**nll):
    """Held-out NLL by pipeline: rows of strengths, columns of groups."""
    paths = [
        HeldOutPath(name, PATH[-len(rows) :] if len(rows) < 3 else PATH, np.array(rows)) for name, rows in nll.items()
    ]
    groups = tuple(f"g{i}" for i in range(paths[0].nll.shape[1]))
    return HeldOut(groups, len(groups), tuple(paths))


def test_the_error_of_leaving_one_group_out_is_that_of_nadeau_and_bengio():
    values = np.array([0.3, -0.1, 0.2, 0.7, 0.1])
    expected = math.sqrt((1 / 5 + (1 / 5) / (4 / 5)) * values.var(ddof=1))  # J = 5 splits, n_test / n_train = 1/4
    assert corrected_error(values, folds=5) == pytest.approx(expected)


@given(DIFFERENCES, st.floats(0.1, 10))
def test_p_values_keep_units_and_grow_with_the_mean(values, unit):
    p = one_sided_p(values, len(values))
    assert 0 <= p <= 1
    assert one_sided_p(unit * values, len(values)) == pytest.approx(p, abs=1e-6)
    assert one_sided_p(values + 0.5, len(values)) >= p - 1e-9
    assert one_sided_p(values, 5) >= one_sided_p(values, 10) - 1e-9 or values.mean() >= 0  # fewer folds: less sure


@given(DIFFERENCES)
def test_gains_hang_together(values):
    found = group_gain(values, [str(i) for i in range(len(values))], len(values))
    assert found.gain.low <= found.gain.mean <= found.gain.high
    assert found.worst_gain <= found.gain.mean + 1e-12
    assert -values[int(found.worst_group)] == found.worst_gain
    assert 0 <= found.loss_probability <= 1
    assert (found.loss_probability > 0.5) == (values.mean() > 0) or abs(values.mean()) < 1e-9
    needed = groups_needed(values, len(values), 0.05)
    assert (needed is None) == (values.mean() >= 0)


@given(arrays(np.float64, (4, 6), elements=st.floats(0, 2)))
def test_the_rule_takes_no_weaker_penalty_than_the_best_and_none_that_is_clearly_worse(nll):
    chosen, best = strongest_within(nll), int(np.argmin(nll.mean(axis=1)))
    assert chosen <= best
    assert strongest_within(nll, width=0.0) <= best
    assert strongest_within(nll, width=2.0) <= chosen
    worse = nll[chosen] - nll[best]
    assert worse.mean() <= worse.std(ddof=1) / math.sqrt(6) + 1e-12


def crossfitted_mean(rng, effect, groups, folds):
    """Squared error of the mean of other folds' groups, less that of 0: a fit with one parameter."""
    values = rng.normal(effect, 1, groups)
    fold = np.arange(groups) % folds
    guess = np.array([values[fold != k].mean() for k in fold])
    return (values - guess) ** 2 - values**2


@pytest.mark.parametrize(("groups", "folds"), [(5, 5), (6, 6), (20, 10)])
def test_level_and_power_of_the_test(groups, folds):
    """Where the fit is worth exactly nothing, it is taken in less than 4 % of draws; an effect is found."""
    rng, draws = np.random.default_rng(0), 2000
    nothing = 1 / math.sqrt(groups - groups // folds)  # effect² = variance of the guess
    accepted = [one_sided_p(crossfitted_mean(rng, nothing, groups, folds), folds) < ALPHA for _ in range(draws)]
    assert np.mean(accepted) < 0.04
    accepted = [one_sided_p(crossfitted_mean(rng, 0.0, groups, folds), folds) < ALPHA for _ in range(draws)]
    assert np.mean(accepted) < 0.015  # there the fit loses
    accepted = [one_sided_p(crossfitted_mean(rng, 5.0, groups, folds), folds) < ALPHA for _ in range(200)]
    assert np.mean(accepted) > 0.9


def test_probability_of_loss_and_interval_meet_the_truth():
    """Independent groups with known mean and spread: the interval covers, losses come as often as was said."""
    rng, covered, said = np.random.default_rng(1), [], []
    for _ in range(500):
        found = group_gain(rng.normal(-1.0, 1.0, 8), list("abcdefgh"), 8)
        covered.append(found.gain.low <= 1.0 <= found.gain.high)
        said.append(found.loss_probability)
    assert np.mean(covered) >= 0.95
    assert abs(np.mean(said) - stats.norm.cdf(-1.0)) < 0.05


def test_a_whole_ladder_of_nothing_is_seldom_climbed():
    rng, left = np.random.default_rng(2), 0
    for _ in range(300):
        shared = rng.normal(0, 1, 8)
        rows = {name: [shared + rng.normal(0, 0.3, 8)] for name in LADDER}
        left += climb(table(**rows), alpha=0.05).pipeline != "identity(p)"
    assert left / 300 < 0.2  # thirteen candidates, each at 5 %


def test_a_gain_of_known_size_is_found_and_a_useless_step_is_not_taken():
    rng = np.random.default_rng(3)
    level, noise = rng.uniform(0.2, 1.0, 8), rng.normal(0, 0.01, (2, 8))
    scaled, richer = level - 0.1 + noise[0], level - 0.1 + noise[1]
    identity = {"identity(p)": [level]}
    found = climb(table(**identity, **{"ts(p)": [level, scaled, scaled], "cms_op(p)": [scaled, richer, richer]}))
    assert (found.pipeline, found.strength) == ("ts(p)", 1.0)
    assert [rung.accepted for rung in found.rungs] == [True, False]
    gain = group_gain(found.nll - level, list("abcdefgh"), 8)
    assert gain.gain.low < 0.1 < gain.gain.high


def hedged(level, held, mixed):
    """A table of one candidate and of a mixture of it with the identity."""
    plain = table(**{"identity(p)": [level], "ts(p)": [held]})
    return plain.followed_by([HeldOutPath("stack(p)", (0.0,), mixed[None], hedges=True)])


def test_a_hedge_needs_a_lead_of_a_standard_error_and_the_test_against_the_reference():
    noise = np.array([0.01, -0.02, 0.015, -0.005, 0.02, -0.02])
    level, held = np.full(6, 1.0), np.full(6, 0.8) + noise
    assert climb(hedged(level, held, held - 0.01 - noise)).pipeline == "stack(p)"  # 0.01 on average, error 0.007
    assert climb(hedged(level, held, held - 0.005 - noise)).pipeline == "ts(p)"
    assert climb(hedged(level, level + noise, level - 0.01 - 9 * noise)).pipeline == "identity(p)"


def test_infinite_strength_is_no_step():
    level = np.linspace(0.2, 0.9, 6)
    found = climb(table(**{"identity(p)": [level], "ts(p)": [level, level + 0.1, level + 0.2]}))
    assert found.pipeline == "identity(p)"
    assert found.rungs[0].strength == math.inf
    assert found.rungs[0].difference == 0


@settings(max_examples=50)
@given(arrays(np.float64, (4, 6), elements=st.floats(-1, 1)), st.floats(0, 1))
def test_what_is_accepted_also_beats_the_reference(steps, pull):
    level = np.full(6, 5.0)
    rows = level + np.cumsum(steps - pull, axis=0)
    names = ["ts(p)", "cms_op(p)", "cms_ap(p)", "cdc(p)"]
    *held, mixed = (HeldOutPath(name, (0.1,), row[None]) for name, row in zip(names, rows, strict=True))
    found = climb(table(**{"identity(p)": [level]}).followed_by([*held, replace(mixed, hedges=True)]))
    if found.pipeline != "identity(p)":
        assert one_sided_p(found.nll - level, 6) < ALPHA


def test_a_choice_made_without_a_group_does_not_look_at_it():
    level = np.array([0.5, 0.6, 0.7, 0.5, 0.6, 0.7])
    better = level - np.array([0.1, 0.11, 0.09, 0.1, 0.12, 0.08])
    found = table(**{"identity(p)": [level], "ts(p)": [better]})
    picks, scores = climb_without_each(found)
    assert picks == ["ts(p)"] * 6
    np.testing.assert_array_equal(scores, better)
    for group in range(6):
        paths = [HeldOutPath(path.pipeline, path.strengths, path.nll.copy()) for path in found.paths]
        changed = HeldOut(found.groups, 6, tuple(paths))
        changed.paths[1].nll[:, group] = 99.0
        picked, _ = climb_without_each(changed)
        assert picked[group] == "ts(p)"
        assert picked.count("identity(p)") == 5  # the others see the group that loses


@settings(max_examples=20)
@given(st.permutations(LADDER), st.integers(2, 20))
def test_the_ladder_follows_from_facts_of_the_calibrators(shuffled, num_classes):
    assert ladder_order(shuffled, num_classes) == LADDER
