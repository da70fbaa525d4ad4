"""Compiled loops give the sums of the torch operations that they stand in for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.functional import fused, image_statistics, sweep

pytest.importorskip("numba")
IGNORED = 255


def an_image(seed, classes, shape, ignored, sharpness):
    """Log-probabilities with ties, certain voxels and probabilities on edges of bins; labels; scores before."""
    g = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(1, classes, *shape, generator=g)
    target = torch.randint(0, classes, (1, *shape), generator=g)
    logits.scatter_add_(1, target[:, None], torch.full((1, 1, *shape), 2.0))
    log_probs = logits.log_softmax(1)
    kind = torch.randint(0, 12, (1, *shape), generator=g)
    log_probs = torch.where((kind == 0)[:, None], -torch.log(torch.tensor(float(classes))), log_probs)
    certain = torch.full_like(log_probs, -torch.inf).index_fill_(1, torch.tensor([classes - 1]), 0.0)
    target = target.masked_fill(torch.rand(target.shape, generator=g) < ignored, IGNORED)
    sure = (kind == 1) & ((target == classes - 1) | (target == IGNORED))
    log_probs = torch.where(sure[:, None], certain, log_probs)
    return log_probs, target, (logits + torch.randn(logits.shape, generator=g)).log_softmax(1)


def both_ways(monkeypatch, *args, **options):
    """Statistics by the loops and by torch."""
    found = []
    for least in (0, 2**62):
        monkeypatch.setattr(fused, "WORTHWHILE", least)
        found.append(image_statistics(*args, **options))
    return found


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    classes=st.integers(2, 40),
    shape=st.sampled_from([(40, 61), (13, 9, 11), (3000,)]),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    sharpness=st.sampled_from([0.1, 2.0, 12.0]),
    class_bins=st.sampled_from([None, 1, 50]),
    given_facts=st.booleans(),
)
def test_loops_are_the_torch_operations(seed, classes, shape, ignored, sharpness, class_bins, given_facts):
    log_probs, target, before = an_image(seed, classes, shape, ignored, sharpness)
    options = {"ignore_index": IGNORED, "classwise": class_bins is not None, "class_bins": class_bins}
    if given_facts:
        away = 20 * torch.rand(target.shape, generator=torch.Generator().manual_seed(seed))
        options |= {"reference": before, "distance": away, "sigma": 1.5}
    with pytest.MonkeyPatch.context() as monkeypatch:
        loops, operations = both_ways(monkeypatch, log_probs, target, **options)
    count = max(1, int(operations.voxels))
    for one, other in zip(loops.tensors(), operations.tensors(), strict=True):
        assert one.dtype == other.dtype
        if one.dtype == torch.int64:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one / count, other / count, rtol=0, atol=1e-9)


def test_without_numba_torch_does_the_work(monkeypatch):
    monkeypatch.setattr(fused, "available", lambda: False)
    monkeypatch.setattr(fused, "WORTHWHILE", 0)
    monkeypatch.setattr(sweep, "FusedTables", None)
    log_probs, target, before = an_image(0, 3, (8, 8), 0.1, 1.0)
    assert int(image_statistics(log_probs, target, ignore_index=IGNORED, reference=before).voxels) > 0


def test_what_is_not_normalised_is_refused_by_the_loops_too(monkeypatch):
    monkeypatch.setattr(fused, "WORTHWHILE", 0)
    log_probs, target, _ = an_image(0, 3, (8, 8), 0.1, 1.0)
    with pytest.raises(ValueError, match="not normalised"):
        image_statistics(log_probs + 1, target, ignore_index=IGNORED)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions_stay_with_torch(dtype, monkeypatch):
    monkeypatch.setattr(sweep, "FusedTables", None)
    monkeypatch.setattr(fused, "WORTHWHILE", 0)
    log_probs, target, _ = an_image(0, 3, (8, 8), 0.1, 1.0)
    assert int(image_statistics(log_probs.to(dtype), target, ignore_index=IGNORED).voxels) > 0
