"""Features of voxels and cases against slow numpy, and what they promise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.functional.features import FEATURES, NEED_MEMBERS, OF_CASE, make_features, pick
from lightning_calib.functional.pooling import pool
from tests.references import features as oracle

shapes = st.sampled_from([(5, 7), (1, 4), (18, 9), (3, 4, 5), (17, 2, 9)])


def scores(seed, shape, num_classes=3, members=3, scale=4.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(1, members, num_classes, *shape, generator=generator)


@pytest.mark.parametrize("name", FEATURES)
@given(seed=st.integers(0, 1000), shape=shapes, pooling=st.sampled_from(["z", "p", "p0"]))
@settings(max_examples=5)
def test_features_are_those_of_the_oracle(name, seed, shape, pooling):
    members = scores(seed, shape)
    pooled = pool(members, pooling)
    found = make_features([name], pooled, members)[0, 0]
    expected = oracle.feature(name, pooled[0].double().numpy(), members[0].double().numpy())
    np.testing.assert_allclose(found.numpy(), np.broadcast_to(expected, shape), rtol=1e-4, atol=2e-3)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert name not in OF_CASE or bool((found == found.flatten()[0]).all())


def test_an_exact_shift_of_members_and_pool_changes_no_bit():
    generator = torch.Generator().manual_seed(0)
    members = (scores(1, (9, 8), members=2) * 64).round() / 64
    shifts = torch.randint(-50, 50, (1, 2, 1, 9, 8), generator=generator).float()
    before, after = ((pool(m, "z"), m) for m in (members, members + shifts))  # halves are exact
    names = list(FEATURES)
    assert torch.equal(make_features(names, *before), make_features(names, *after))


def test_members_that_agree_and_are_sure():
    members = torch.zeros(1, 2, 2, 8, 8)
    members[:, :, 0] = 200.0
    found = dict(zip(FEATURES, make_features(list(FEATURES), pool(members, "p"), members)[0], strict=True))
    sure = {"winner_3": 1, "winner_7": 1, "winner_15": 1, "gap": 200 / 204}
    for name in found.keys() - {"case_size"}:
        np.testing.assert_allclose(found[name], sure.get(name, 0), atol=1e-6)


def test_half_precision_members_are_taken():
    members = scores(0, (4, 5)).half()
    assert make_features(list(FEATURES), pool(members, "p"), members).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_features(["votes"], torch.zeros(1, 2, 4, 4)), r"votes cannot be made of pooled logits"),
        (lambda: make_features(["doubt"], torch.zeros(1, 2, 4, 4)), "unknown features doubt; there are entropy"),
        (lambda: make_features(["entropy"] * 2, torch.zeros(1, 2, 4, 4)), "named twice"),
        (lambda: make_features(["entropy"], torch.zeros(5, 2)), r"need images \(B, C, \*S\), got the shape \(5, 2\)"),
        (lambda: pick(torch.zeros(1, 1, 4), ["votes"], ["entropy"]), "entropy are not there; there are votes"),
    ],
)
def test_what_cannot_be_made_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_those_that_need_members_are_known():
    pooled = torch.zeros(1, 2, 4, 4)
    for name in FEATURES:
        if name not in NEED_MEMBERS:
            make_features([name], pooled)
