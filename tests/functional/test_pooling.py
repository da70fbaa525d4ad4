"""Pooling against numpy in extended precision."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.functional import pool


def member_logits(seed, scale):
    return torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed)) * scale


@given(seed=st.integers(0, 2**31 - 1), scale=st.sampled_from([1.0, 30.0]))
def test_p_is_the_log_of_the_mean_probability(seed, scale):
    logits = member_logits(seed, scale).double()
    z = logits.numpy().astype(np.longdouble)
    probs = np.exp(z - z.max(axis=2, keepdims=True))
    probs /= probs.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(
        pool(logits, "p").numpy(), np.log(probs.mean(axis=1)).astype(float), rtol=1e-11, atol=1e-12
    )


@given(seed=st.integers(0, 2**31 - 1))
def test_z_is_the_mean_and_p0_the_first_member(seed):
    logits = member_logits(seed, 5.0)
    np.testing.assert_allclose(pool(logits, "z").numpy(), logits.double().numpy().mean(axis=1), rtol=1e-5, atol=1e-5)
    assert torch.equal(pool(logits, "p0"), logits[:, 0])


def test_p_clips_no_tail():
    logits = torch.tensor([[[1e4, 0.0], [1e4, 0.0]]])
    assert pool(logits, "p").tolist() == [[0.0, -1e4]]


def test_p_forgets_shifts_of_single_members():
    logits = member_logits(0, 3.0)
    shifts = torch.tensor([5.0, -300.0, 17.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(pool(logits + shifts, "p"), pool(logits, "p"), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_pooled_in_float32(dtype):
    logits = member_logits(1, 3.0).to(dtype)
    for pooling in ("z", "p", "p0"):
        pooled = pool(logits, pooling)
        assert pooled.dtype == torch.float32
        torch.testing.assert_close(pooled, pool(logits.double(), pooling).float())


@pytest.mark.parametrize(
    ("logits", "pooling", "message"),
    [
        (torch.zeros(1, 2, 3), "mean", "unknown pooling 'mean'; choose one of z, p, p0"),
        (torch.zeros(2, 3), "z", r"\(B, M, C, \*S\), got the shape \(2, 3\)"),
        (torch.zeros(1, 2, 3, dtype=torch.int64), "z", "floating point, got torch.int64"),
    ],
)
def test_bad_input(logits, pooling, message):
    with pytest.raises(ValueError, match=message):
        pool(logits, pooling)
