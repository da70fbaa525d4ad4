"""Sigmoid outputs as two classes: decisions to the tie, nestedness."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.functional.pooling import POOLINGS, pool
from lightning_calib.functional.regions import (
    log_odds,
    nest,
    pool_one_channel,
    strict_sigmoid,
    supersets,
    two_classes,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SCORES = st.lists(st.floats(-30, 30, width=16) | st.sampled_from([0.0, -0.0, 1e-7, -1e-7]), min_size=3, max_size=3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_classes_decide_as_the_sign_does(dtype):
    tiny = torch.finfo(dtype).smallest_normal
    logits = torch.tensor([0.0, -0.0, tiny, -tiny, 1e-9, -1e-9, 3.0, -3.0], dtype=dtype)
    classes = two_classes(logits, dim=0)
    assert torch.equal(classes.argmax(0) == 1, logits > 0)
    assert torch.equal(log_odds(classes, dim=0) > 0, logits > 0)
    assert torch.equal(strict_sigmoid(logits) > 0.5, logits > 0)
    assert (strict_sigmoid(logits).double() - logits.double().sigmoid()).abs().max() <= torch.finfo(dtype).eps


@pytest.mark.parametrize("pooling", POOLINGS)
def test_regions_are_pooled_each_by_itself(pooling):
    logits = 5 * torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = pool_one_channel(logits.movedim(0, 1), pooling)  # regions in place of a batch
    expected = {"z": logits.mean(0), "p0": logits[0], "p": logits.sigmoid().mean(0).logit()}[pooling]
    torch.testing.assert_close(found, expected)
    one = pool(two_classes(logits[:, 1], dim=1)[None], pooling)[0]
    assert torch.equal(found[1], log_odds(one, dim=0))


def test_supersets_need_not_be_a_chain():
    assert supersets([[1, 2], [2, 3], [2], [4]]) == [[], [], [0, 1], []]
    assert supersets([[1], [1]]) == [[], []]  # equal regions are not within each other


@given(SCORES)
def test_nesting_changes_no_decision_and_nests_what_can_be(scores):
    logits = torch.tensor(scores)[None]  # whole, core, enhancing
    within = supersets([[1, 2, 3], [2, 3], [3]])
    nested = nest(logits, within)
    assert torch.equal(nested > 0, logits > 0)
    for small, larger in enumerate(within):
        for large in larger:
            if not (logits[0, small] > 0 and logits[0, large] <= 0):
                assert nested[0, small] <= nested[0, large]
    assert torch.equal(nest(nested, within), nested)
    assert (nested <= logits).all()
