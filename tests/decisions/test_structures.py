"""Facts on structures, predicted Dice, intervals of volumes, ranking of cases."""

import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from scipy.stats import binom, spearmanr

from lightning_calib.decisions import QualityModel, StructureFacts, TooFewGroupsError, VolumeModel, structure_facts
from lightning_calib.decisions.quality import pairwise_dice, true_dice
from lightning_calib.decisions.review import aurc, caught, excess_aurc, risk_curve, spearman
from lightning_calib.decisions.volumes import conformal_quantile, held_out_intervals, least_groups, voxel_volume
from tests.references import decisions as slow


@pytest.mark.parametrize("shape", [(7, 9), (4, 5, 6)])
def test_facts_are_sums_over_counted_voxels(shape):
    rng = np.random.default_rng(3)
    probs, counted = rng.beta(0.5, 0.8, shape), rng.random(shape) < 0.85
    mask, members = probs > 0.5, rng.random((3, *shape)) < probs
    found = structure_facts(*map(torch.from_numpy, (probs, mask, counted, members)))
    assert found.mask == (mask & counted).sum()
    assert found.expected == pytest.approx(probs[counted].sum())
    assert found.hits == pytest.approx(probs[mask & counted].sum())
    assert found.variance == pytest.approx((probs * (1 - probs))[counted].sum())
    assert found.certainty == pytest.approx(slow.certainty(probs, mask, counted))
    pairs = [slow.dice(members[a][counted], members[b][counted]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found.agreement == pytest.approx(np.mean(pairs))


def test_masks_without_voxels_borders_or_finders():
    empty, full = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    probs = torch.tensor([0.5, 0.5, 1.0, 1.0])
    nothing = structure_facts(probs, empty, members=torch.stack([empty, empty]))
    assert all(math.isnan(fact) for fact in (nothing.expected_dice, nothing.certainty, nothing.agreement))
    everything = structure_facts(probs, full, members=torch.stack([empty, empty]))
    assert (everything.certainty, everything.agreement) == (0.5, 0.0)
    assert math.isnan(structure_facts(probs, full, members=full[None]).agreement)
    assert math.isnan(true_dice(empty, empty, full))
    assert true_dice(full, empty, full) == 0
    assert pairwise_dice(torch.stack([empty, full, full])) == pytest.approx(1 / 3)


def test_the_expected_dice_is_that_of_drawn_labels():
    rng = np.random.default_rng(0)
    probs = rng.beta(0.3, 0.6, 3000)
    mask = probs > 0.5
    drawn = np.mean([slow.dice(mask, rng.random(3000) < probs) for _ in range(300)])
    fact = structure_facts(torch.from_numpy(probs), torch.from_numpy(mask))
    assert fact.expected_dice == pytest.approx(drawn, abs=2e-3)


def quality_data(seed=0, count=60):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.3, 1, (count, 3))
    y = np.clip(0.1 + x @ [0.5, 0.3, -0.2] + 0.03 * rng.standard_normal(count), 0, 1)
    facts = [StructureFacts(100, 50 * d * 2, 100.0, 9.0, c, a) for d, c, a in x]
    return facts, x, y


def test_the_predicted_dice_is_bounded_least_squares():
    facts, x, y = quality_data()
    model = QualityModel.fit(facts, y.tolist())
    design = np.column_stack([x, np.ones(len(x))])
    expected = lsq_linear(design, y, bounds=([0, 0, 0, -np.inf], np.inf), tol=1e-12).x
    assert model.features == ("expected_dice", "certainty", "agreement")
    assert [*model.weights, model.intercept] == pytest.approx(expected, abs=1e-6)
    assert model.weights[2] == 0
    assert model.predict(facts) == pytest.approx(np.clip(design @ expected, 0, 1), abs=1e-6)


@given(st.tuples(*[st.floats(0, 1)] * 3), st.tuples(*[st.floats(0, 1)] * 3))
def test_more_certainty_never_lowers_the_predicted_dice(first, second):
    facts, _, y = quality_data()
    model = QualityModel.fit(facts, y.tolist())
    low, high = (tuple(fold(pair) for pair in zip(first, second, strict=True)) for fold in (min, max))
    below, above = model.predict([StructureFacts(10, 10 * d, 10.0, 1.0, c, a) for d, c, a in (low, high)])
    assert 0 <= below <= above <= 1


def test_a_model_takes_the_facts_that_there_are_and_enough_of_them():
    facts, _, y = quality_data()
    lone = [StructureFacts(f.mask, f.hits, f.expected, f.variance, f.certainty) for f in facts]
    assert QualityModel.fit(lone, y.tolist()).features == ("expected_dice", "certainty")
    with pytest.raises(ValueError, match="10 structures"):
        QualityModel.fit(facts[:9], y[:9].tolist())


scores = arrays.arrays(np.float64, st.integers(4, 30), elements=st.floats(0, 10).map(lambda x: round(x, 1)))


@given(scores, st.integers(0, 10**6), st.sampled_from([0.5, 0.6, 0.75]))
def test_the_quantile_is_the_least_that_promises_the_level(values, seed, level):
    groups = [str(g) for g in np.random.default_rng(seed).integers(0, 6, len(values))]
    names = sorted(set(groups))
    weight = {g: 1 / ((len(names) + 1) * groups.count(g)) for g in names}

    def promised(q):
        return sum(weight[g] for v, g in zip(values, groups, strict=True) if v <= q) >= level - 1e-9

    if len(names) < least_groups(level):
        with pytest.raises(TooFewGroupsError, match=f"needs {least_groups(level)} groups"):
            conformal_quantile(values.tolist(), groups, level)
    else:
        assert conformal_quantile(values.tolist(), groups, level) == min(v for v in values if promised(v))


@pytest.mark.parametrize("scale", ["spread", "volume", "constant"])
def test_intervals_cover_new_groups_in_2000_draws(scale):
    """Groups of one to three cases that err alike; one case of a new group each time."""
    rng, level, covered = np.random.default_rng(0), 0.8, 0
    for _ in range(2000):
        facts, volumes, groups = [], [], []
        for g in range(13):
            bias = rng.normal(1, 0.3)
            for _ in range(rng.integers(1, 4)):
                expected = rng.uniform(50, 200)
                facts.append(StructureFacts(1, 1.0, expected, expected / 4))
                volumes.append(expected * bias + rng.normal(0, 3))
                groups.append(str(g))
        last = groups.index("12")
        model = VolumeModel.fit(facts[:last], volumes[:last], groups[:last], scale, level)
        low, high = model.interval(facts[last])
        covered += low <= volumes[last] <= high
    assert covered >= binom.ppf(0.001, 2000, level)
    assert covered <= binom.ppf(0.999, 2000, level + 2 / 13)


def test_held_out_intervals_know_nothing_of_their_group():
    facts = [StructureFacts(1, 1.0, 100.0, 1.0) for _ in range(6)]
    volumes, groups = [100.0, 101.0, 99.0, 102.0, 100.0, 180.0], list("abcdee")
    found = held_out_intervals(facts, volumes, groups, "constant", 0.75)
    assert found[5].tolist() == found[4].tolist() == [98.0, 102.0]
    assert found[0].tolist() == [20.0, 180.0]
    assert np.isnan(held_out_intervals(facts, volumes, groups, "constant", 0.85)).all()
    assert VolumeModel(50.0, "volume", 0.9, 9).interval(facts[0], voxels=300) == (0.0, 300.0)
    assert voxel_volume({"affine": []}) == (1.0, "voxels")


risks = arrays.arrays(np.float64, st.integers(2, 12), elements=st.integers(0, 4).map(float))


@given(risks, st.integers(0, 10**6))
def test_rankings_agree_with_random_breaking_of_ties(risk, seed):
    score = np.random.default_rng(seed).integers(0, 3, len(risk)).astype(float)
    curve, area = risk_curve(score, risk), aurc(score, risk)
    assert curve[-1] == pytest.approx(risk.mean())
    assert excess_aurc(-risk, risk) == pytest.approx(0)
    assert excess_aurc(score, risk) >= -1e-12
    assert area == pytest.approx(slow.mean_aurc(score, risk))
    assert caught(np.zeros(len(risk)), risk, 0.3) == pytest.approx(0.3) or risk.sum() == 0
    with np.errstate(invalid="ignore"):
        if np.ptp(score) and np.ptp(risk):
            assert spearman(score, risk) == pytest.approx(spearmanr(score, risk).statistic)
        else:
            assert math.isnan(spearman(score, risk))
