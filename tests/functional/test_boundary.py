"""Boundaries, exact distances, their cache, and calibration by distance."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib import functional as F
from lightning_calib.functional.boundary import boundary, check_bands
from tests.references import metrics as oracle

IGNORE = 255


@st.composite
def label_maps(draw):
    shape = draw(st.sampled_from([(1,), (17,), (9, 11), (1, 12), (5, 6, 7)]))
    labels = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, labels, [-(-n // 4) for n in shape])
    for axis in range(len(shape)):
        coarse = coarse.repeat(4, axis=axis)
    target = coarse[tuple(slice(n) for n in shape)].copy()
    if draw(st.booleans()):
        target[rng.random(shape) < 0.3] = IGNORE
    return target


@given(label_maps())
def test_distances_match_all_pairs(target):
    ours = F.boundary_distance(torch.from_numpy(target)[None], ignore_index=IGNORE)[0]
    np.testing.assert_allclose(ours.numpy(), oracle.distances(target, IGNORE), rtol=1e-6)


@given(label_maps(), st.integers(0, 10**6))
def test_boundary_aware_error_matches_the_oracle(target, seed):
    target.flat[0] = 0  # one voxel counts at least
    g = torch.Generator().manual_seed(seed)
    log_probs = (3 * torch.randn(4, *target.shape, generator=g)).log_softmax(0)
    for bands in (F.BANDS, (0, 1, 2, math.inf)):
        ours = F.boundary_aware_calibration_error(log_probs[None], torch.from_numpy(target)[None], IGNORE, bands=bands)
        expected = oracle.ba_ece(log_probs.numpy(), target, bands, IGNORE)
        assert ours.item() == pytest.approx(expected, rel=1e-6)


def test_ignored_voxels_make_no_boundary():
    target = torch.tensor([[0, 0, IGNORE, 1, 1]])
    assert not boundary(target[0], IGNORE).any()
    assert F.boundary_distance(target, IGNORE).isinf().all()
    assert boundary(target[0]).tolist() == [False, True, True, True, False]


def test_the_image_border_is_no_boundary():
    target = torch.zeros(1, 8, 8, dtype=torch.int64)
    target[0, :, 4:] = 1
    expected = torch.tensor([3.0, 2, 1, 0, 0, 1, 2, 3]).expand(8, 8)
    assert torch.equal(F.boundary_distance(target)[0], expected)


def test_one_label_gives_the_gap_of_the_whole_image():
    log_probs = torch.tensor([0.7, 0.3]).log().view(1, 2, 1, 1).expand(1, 2, 4, 4)
    error = F.boundary_aware_calibration_error(log_probs, torch.ones(1, 4, 4, dtype=torch.int64))
    assert error.item() == pytest.approx(abs(0.3 - 1.0), rel=1e-6)


def test_given_distances_give_the_same_figure():
    g = torch.Generator().manual_seed(0)
    log_probs = torch.randn(2, 3, 12, 12, generator=g).log_softmax(1)
    target = torch.randint(0, 3, (2, 6, 6), generator=g).repeat_interleave(2, 1).repeat_interleave(2, 2)
    computed = F.boundary_aware_calibration_error(log_probs, target)
    given_ = F.boundary_aware_calibration_error(log_probs, target, distance=F.boundary_distance(target))
    assert computed == given_


def test_cache_computes_once_a_target_and_never_serves_another():
    cache = F.DistanceCache()
    target = torch.tensor([[0, 0, 1, 1, 1]])
    first = cache(target)
    assert torch.equal(cache(target.clone()), first)
    assert cache.num_computed == 1
    target[0, 4] = 0
    assert torch.equal(cache(target), F.boundary_distance(target))
    assert cache.num_computed == 2
    assert torch.equal(F.DistanceCache(ignore_index=1)(target), F.boundary_distance(target, 1))


def test_cache_keeps_within_its_size():
    cache = F.DistanceCache(max_bytes=2 * 4 * 10)
    targets = [torch.randint(0, 3, (1, 10)) for _ in range(5)]
    for target in targets:
        cache(target)
    cache(targets[-1])
    assert cache.num_computed == 5
    cache(targets[0])
    assert cache.num_computed == 6


@pytest.mark.parametrize("bands", [(0,), (1, 3, math.inf), (0, 3, 3, math.inf), (0, 3, 7)])
def test_bad_bands_are_refused(bands):
    with pytest.raises(ValueError, match="bands must rise from 0 to infinity"):
        check_bands(bands)


def test_bad_shapes_and_distances_are_refused():
    with pytest.raises(ValueError, match="1 to 3 spatial axes"):
        F.boundary_distance(torch.zeros(5, dtype=torch.int64))
    log_probs = torch.zeros(1, 2, 4).log_softmax(1)
    target = torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(ValueError, match="distance has the shape"):
        F.boundary_aware_calibration_error(log_probs, target, distance=torch.zeros(1, 5))
    with pytest.raises(ValueError, match="0 or more"):
        F.boundary_aware_calibration_error(log_probs, target, distance=torch.full((1, 4), -1.0))
