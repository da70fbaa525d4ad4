"""Grids, patches and normalisation of volumes, against slow or exact ways to get the same."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.datasets.grids import Grid, nonzero_box
from lightning_calib.datasets.volume_reader import z_score
from lightning_calib.datasets.volume_transforms import VolumeAugment, pad_to, patch_start

SHAPE = st.tuples(*[st.integers(1, 7)] * 3)


@given(SHAPE, st.floats(0, 0.3), st.integers(0, 99))
def test_the_box_is_the_smallest_that_holds_all(shape, share, seed):
    inside = np.random.default_rng(seed).random(shape) < share
    box = nonzero_box(inside)
    slices = tuple(slice(a, b) for a, b in box)
    assert inside[slices].sum() == inside.sum()
    if inside.any():
        for axis in range(3):
            faces = np.moveaxis(inside[slices], axis, 0)
            assert faces[0].any()
            assert faces[-1].any()
    else:
        assert inside[slices].shape == inside.shape


@given(SHAPE, st.integers(0, 99))
def test_cropped_logits_come_back_where_they_were(shape, seed):
    rng = np.random.default_rng(seed)
    box = tuple(sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in shape)
    grid = Grid.fit(shape, tuple((a, b) for a, b in box), (1.0, 1.0, 1.0))
    full = rng.normal(size=(2, *shape)).astype(np.float32)
    restored = grid.restore(torch.from_numpy(grid.image(full))).numpy()
    valid = grid.valid()
    np.testing.assert_array_equal(restored[:, valid], full[:, valid])
    assert not restored[:, ~valid].any()
    assert valid.sum() == np.prod([b - a for a, b in box])


def linear(shape, spacing):
    """A field that is linear in mm, at voxel centres."""
    axes = [(np.arange(n) + 0.5) * s for n, s in zip(shape, spacing, strict=True)]
    z, y, x = np.meshgrid(*axes, indexing="ij")
    return (2 * z - 3 * y + x).astype(np.float32)[None]


def test_resampling_keeps_places():
    """Linear fields are resampled exactly by trilinear interpolation, away from the border."""
    grid = Grid.fit((8, 12, 10), ((0, 8), (0, 12), (0, 10)), (2.0, 1.0, 0.5))
    assert grid.shape == (16, 12, 5)
    inner = (0, slice(2, -2), slice(2, -2), slice(1, -1))
    there = grid.image(linear((8, 12, 10), (2.0, 1.0, 0.5)))
    np.testing.assert_allclose(there[inner], linear((16, 12, 5), (1.0, 1.0, 1.0))[inner], atol=1e-4)
    back = grid.restore(torch.from_numpy(linear((16, 12, 5), (1.0, 1.0, 1.0))))
    np.testing.assert_allclose(back.numpy()[inner], linear((8, 12, 10), (2.0, 1.0, 0.5))[inner], atol=1e-4)


def test_targets_take_the_nearest_voxel():
    grid = Grid.fit((2, 3, 4), ((0, 2), (0, 3), (0, 4)), (2.0, 1.0, 0.5))
    target = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(grid.target(target), target.repeat(2, axis=0)[:, :, 1::2])


def test_z_score_counts_inside_only():
    rng = np.random.default_rng(0)
    image = rng.normal(5, 3, (2, 6, 6, 6))
    inside = rng.random((6, 6, 6)) < 0.5
    done = z_score(image, inside)
    for channel, before in zip(done, image, strict=True):
        voxels = before[inside]
        expected = (voxels - voxels.sum() / voxels.size) / np.sqrt(((voxels - voxels.mean()) ** 2).sum() / voxels.size)
        np.testing.assert_allclose(channel[inside], expected, atol=1e-5)
        assert not channel[~inside].any()
    assert not z_score(image, np.zeros_like(inside)).any()


def test_foreground_is_oversampled_and_classes_are_even():
    target = np.zeros((20, 20, 20), dtype=np.int64)
    target[2, 3, 4] = 1  # one voxel
    target[10:15, 10:15, 10:15] = 2  # 125 voxels
    target[0, 0, :] = 9  # ignored
    rng = np.random.default_rng(0)
    starts = [patch_start(target, (3, 3, 3), 1.0, 0, 9, rng) for _ in range(400)]
    ones = sum(start == (1, 2, 3) for start in starts)
    assert 150 < ones < 250
    centres = [target[tuple(np.array(start) + 1)] for start in starts]
    assert set(centres) == {1, 2}
    share = np.mean(
        [target[tuple(np.array(patch_start(target, (3, 3, 3), 0.33, 0, 9, rng)) + 1)] > 0 for _ in range(900)]
    )
    assert 0.28 < share < 0.41


@given(SHAPE, SHAPE, st.integers(0, 50))
def test_patches_lie_inside(shape, size, seed):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 2, shape)
    image, padded = pad_to(rng.normal(size=(1, *shape)), target, size)
    assert image.shape[1:] == padded.shape == tuple(map(max, shape, size))
    assert set(np.unique(padded)) == set(np.unique(target))
    start = patch_start(padded, size, 0.5, 0, None, rng)
    assert all(0 <= a <= n - s for a, n, s in zip(start, padded.shape, size, strict=True))


def test_no_foreground_gives_any_patch():
    starts = {patch_start(np.zeros((4, 4, 4)), (2, 2, 2), 1.0, 0, None, np.random.default_rng(s)) for s in range(60)}
    assert len(starts) > 15


@pytest.mark.parametrize("augmentation", ["light", "strong"])
def test_augmentation_is_a_function_of_the_numbers(augmentation):
    rng = np.random.default_rng(0)
    target = rng.integers(0, 3, (8, 10, 12))
    image = target[None].astype(np.float32)
    one, two = VolumeAugment(augmentation), VolumeAugment(augmentation)
    two(image, target, np.random.default_rng(99))
    moved = 0
    for seed in range(6):
        first, second = (augment(image, target, np.random.default_rng(seed)) for augment in (one, two))
        np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(first[1], second[1])
        assert first[0].dtype == np.float32
        assert first[1].dtype == np.int64
        assert set(np.unique(first[1])) <= {0, 1, 2}
        moved += not np.array_equal(first[1], target)
    assert moved >= 4


def test_target_follows_the_volume():
    """Mirroring and intensity leave each label its own grey value."""
    rng = np.random.default_rng(0)
    target = rng.integers(0, 3, (8, 10, 12))
    for seed in range(8):
        image, mask = VolumeAugment("light")(target[None].astype(np.float32), target, np.random.default_rng(seed))
        assert all(np.ptp(image[0][mask == label]) < 1e-6 for label in range(3))
