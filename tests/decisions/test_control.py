"""Masks with a guaranteed risk: tables, losses, thresholds, and the promise itself in simulations."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mapie.risk_control import SemanticSegmentationController
from scipy.stats import binom

from lightning_calib.decisions import (
    FALSE,
    MISSED,
    THRESHOLDS,
    Control,
    Risk,
    TooFewGroupsError,
    case_losses,
    group_means,
    inside,
    least_groups,
    threshold_table,
)
from lightning_calib.decisions.control import METHODS, envelope
from tests.references import decisions as slow

RISK = {"outer": MISSED, "inner": FALSE}
GRID = THRESHOLDS.numpy()


def random_case(seed, shape=(5, 6)):
    """Probabilities, truth and counted voxels; some probabilities lie on the grid, some are 0 and 1."""
    rng = np.random.default_rng(seed)
    probs = rng.beta(0.4, 0.6, shape)
    probs[0, :4] = [0.0, 1.0, GRID[700], GRID[1800]]
    return probs, rng.random(shape) < probs, rng.random(shape) < 0.8


def population(seed, groups=300):
    """Tables of small images whose scores err in either direction, some of them without any true voxel."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(groups):
        truth = rng.random(200) < rng.choice([0.0, 0.1, 0.4], p=[0.1, 0.5, 0.4])
        scores = rng.normal(rng.uniform(-1, 1) + rng.uniform(1, 4) * (2 * truth - 1), 2)
        found.append(threshold_table(torch.from_numpy(scores).sigmoid(), torch.from_numpy(truth), torch.ones(200) > 0))
    return torch.stack(found).numpy()[:, :, ::12]


@pytest.mark.parametrize("seed", range(3))
def test_a_table_counts_voxels_at_every_threshold(seed):
    case = random_case(seed)
    found = threshold_table(*map(torch.from_numpy, case))
    assert (found.numpy() == slow.table(*case, GRID)).all()
    assert found[:, 0].sum() == case[2].sum()
    assert not found[:, -1].any()


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5)])
def test_masks_are_those_that_the_table_counted(shape):
    probs, truth = torch.rand(shape, generator=torch.Generator().manual_seed(0)), torch.ones(shape, dtype=torch.bool)
    probs.view(-1)[0] = float(THRESHOLDS[900])  # rounded to float32: both must round alike
    table = threshold_table(probs, truth, truth)
    assert [int(inside(probs, float(t)).sum()) for t in THRESHOLDS] == table[1].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_losses_are_shares_of_voxels(seed):
    probs, truth, _ = random_case(seed)
    table = threshold_table(torch.from_numpy(probs), torch.from_numpy(truth), torch.ones(probs.shape) > 0).numpy()
    for risk, oracle in ((MISSED, slow.missed), (FALSE, slow.false)):
        assert case_losses(risk, table) == pytest.approx([oracle(probs, truth, t) for t in GRID])


def test_a_loss_of_ones_own_is_checked():
    outside = Risk("outer", lambda false, true: true - true[0], "something below 0")
    with pytest.raises(ValueError, match=r"something below 0.*in \[0, 1\]"):
        case_losses(outside, np.array([[3, 1], [4, 2]]))


losses = arrays.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(2, 9)), elements=st.floats(0, 1))


@given(losses, st.sampled_from(["outer", "inner"]))
def test_envelopes_are_monotone_and_least(values, side):
    found = envelope(values, side)
    steps = np.diff(found, axis=1) * (1 if side == "outer" else -1)
    assert (steps >= 0).all()
    assert (found >= values).all()
    assert (envelope(found, side) == found).all()
    first = 0 if side == "outer" else -1
    assert (found[:, first] == values[:, first]).all()
    assert (found.max(axis=1) == values.max(axis=1)).all()


@given(losses, st.sampled_from(["outer", "inner"]), st.floats(0.01, 0.99))
def test_conformal_risk_control_takes_the_last_safe_threshold(values, side, alpha):
    values[:, 0 if side == "outer" else -1] = 0
    expected = slow.crc(values, alpha, side)
    if expected is None:
        with pytest.raises(TooFewGroupsError):
            Control(side, alpha).choose(values)
    else:
        assert Control(side, alpha).choose(values) == expected


@given(losses, st.sampled_from(["outer", "inner"]), st.sampled_from(["crc", "hb", "wsr"]))
def test_a_higher_alpha_never_gives_a_more_cautious_mask(values, side, method):
    values[:, 0 if side == "outer" else -1] = 0
    found = []
    for alpha in (0.3, 0.5, 0.7, 0.9):
        if len(values) >= least_groups(alpha, method, 0.3):
            found.append(Control(side, alpha, method, 0.3).choose(values))
    assert found == sorted(found, reverse=side == "inner")


@pytest.mark.parametrize("alpha", [0.5, 0.2, 0.1, 0.05])
def test_too_few_groups_are_refused_with_the_number_needed(alpha):
    needed = least_groups(alpha)
    assert (needed + 1) * alpha >= 1 > needed * alpha - 1e-9
    safe = np.zeros((needed, 3))
    assert Control("outer", alpha).choose(safe) == 2
    with pytest.raises(TooFewGroupsError, match=f"{needed} groups .* there are {needed - 1}"):
        Control("outer", alpha).choose(safe[1:])


def test_a_loss_that_no_mask_avoids_is_refused():
    with pytest.raises(ValueError, match=r"mean loss of 0\.6 over 30 groups"):
        Control("outer", 0.2).choose(np.full((30, 4), 0.6))


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_mapie_finds_the_same_threshold(alpha):
    rng = np.random.default_rng(1)
    truth = rng.random((60, 12, 14)) < 0.3
    probs = 1 / (1 + np.exp(-rng.normal(1.5 * (2.0 * truth - 1), 2)))
    grid = GRID[:-1:40]
    tables = [
        threshold_table(*map(torch.from_numpy, (p, y, np.ones_like(y)))).numpy()
        for p, y in zip(probs, truth, strict=True)
    ]
    curves = np.stack([case_losses(MISSED, table)[:-1:40] for table in tables])
    mine = grid[Control("outer", alpha).choose(curves)]
    theirs = SemanticSegmentationController(
        lambda x: probs[x.ravel()][:, None],  # (n, 1, H, W)
        risk="recall",
        method="crc",
        target_level=1 - alpha,
        predict_params=np.nextafter(grid, -1),  # their masks are above a threshold, ours reach it
    )
    images = truth.reshape(60, -1).astype(int)
    theirs.compute_risks(np.arange(60)[:, None], images).compute_best_predict_param()
    assert np.nextafter(theirs.best_predict_param[0], 2) == mine


@given(losses, st.floats(0.05, 0.9), st.floats(0.05, 0.5))
def test_bounds_of_high_probability_are_those_of_the_papers(values, alpha, delta):
    for name, statistic in (("hb", slow.hoeffding_bentkus), ("wsr", slow.betting)):
        found = METHODS[name](values, alpha, delta)
        for column, safe in zip(values.T.tolist(), found.tolist(), strict=True):
            excess = statistic(column, alpha, delta)
            assert safe == (excess <= 0) or abs(excess) < 1e-9


@pytest.mark.parametrize("side", ["outer", "inner"])
def test_the_expected_loss_is_held_in_2000_draws(side):
    """With thresholds from 30 groups; losses that are monotone are also nearly used up."""
    rng, alpha, draws, groups = np.random.default_rng(0), 0.15, 2000, 30
    curves = np.stack([case_losses(RISK[side], table) for table in population(0)])
    true_risk, how = curves.mean(axis=0), Control(side, alpha)
    picked = np.array([how.choose(curves[rng.integers(len(curves), size=groups)]) for _ in range(draws)])
    risks = true_risk[picked]
    lost = rng.random(draws) < curves[rng.integers(len(curves), size=draws), picked]  # a voxel of one new case
    assert lost.sum() <= binom.ppf(0.999, draws, alpha)
    error = risks.std() / np.sqrt(draws)
    assert risks.mean() <= alpha + 3 * error
    if side == "outer":
        assert risks.mean() >= alpha - 2 / (groups + 1) - 3 * error


@pytest.mark.parametrize("method", ["hb", "wsr"])
@pytest.mark.parametrize("side", ["outer", "inner"])
def test_the_risk_is_held_with_high_probability_in_2000_draws(side, method):
    rng, alpha, delta, draws = np.random.default_rng(0), 0.2, 0.1, 2000
    curves = np.stack([case_losses(RISK[side], table) for table in population(0)])
    how = Control(side, alpha, method, delta)
    picked = [how.choose(curves[rng.integers(len(curves), size=40)]) for _ in range(draws)]
    broken = (curves.mean(axis=0)[picked] > alpha).sum()
    assert broken <= binom.ppf(0.999, draws, delta)


def test_patients_with_many_cases_count_once():
    """One patient has 400 bad cases, 30 others a good one each: cases as the unit would refuse any mask but all."""
    bad, good = np.array([[0.0, 1.0, 1.0]]), np.array([[0.0, 0.0, 1.0]])
    losses = np.vstack([bad.repeat(400, axis=0), good.repeat(30, axis=0)])
    groups = ["a"] * 400 + [f"b{n}" for n in range(30)]
    names, means = group_means(losses, groups)
    assert names[0] == "a"
    assert Control("outer", 0.1).choose(means) == 1
    assert Control("outer", 0.1).choose(losses) == 0


def test_a_group_is_judged_by_the_others():
    losses = np.vstack([np.tile([0.0, 0.0, 1.0], (20, 1)), [[0.0, 1.0, 1.0]]])
    units = [f"p{n}" for n in range(21)]
    how = Control("outer", 0.1)
    assert how.held_out(losses, units).tolist() == [0.0] * 20 + [1.0]
    together = how.held_out(losses, ["site a"] * 15 + ["site b"] * 6)
    assert np.isnan(together[:15]).all()  # the six others are too few
    assert together[15:].tolist() == [0.0] * 5 + [1.0]
