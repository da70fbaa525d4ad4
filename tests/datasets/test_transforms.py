"""Images and targets are changed alike, by the sample's own numbers."""

import numpy as np
import pytest

from lightning_calib.datasets.transforms import ImageTransform, normalize


@pytest.fixture
def pair():
    """An image whose red channel is 10 times its target: they must stay in step."""
    target = np.random.default_rng(0).integers(0, 20, (6, 8)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    return np.stack([target * 10, target, target], axis=2), target


def rng(seed):
    return np.random.default_rng(seed)


def test_normalisation_of_eight_bit_rgb():
    image = rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    expected = [[[(v / 255 - m) / s for v, m, s in zip(p, mean, std, strict=True)] for p in row] for row in image]
    np.testing.assert_allclose(normalize(image, "imagenet"), expected, rtol=1e-5, atol=1e-5)


def test_normalisation_by_the_image():
    image = rng(0).normal(50, 7, (30, 30, 2)).astype(np.float32)
    image[..., 1] = 3
    done = normalize(image, "image")
    np.testing.assert_allclose(done[..., 0].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(done[..., 0].std(), 1, atol=1e-5)
    assert not done[..., 1].any()


@pytest.mark.parametrize("any_orientation", [True, False])
@pytest.mark.parametrize("crop", [None, (24, 40), (64, 100)])
def test_target_follows_the_image(pair, any_orientation, crop):
    image, target = pair
    transform = ImageTransform(None, crop, "light", any_orientation=any_orientation)
    transform._steps = type(transform._steps)([s for s in transform._steps.transforms if "Brightness" not in str(s)])
    shapes, changed = set(), 0
    for seed in range(20):
        done, mask = transform(image, target, rng(seed))
        raw = np.rint((done[..., 0] * 0.229 + 0.485) * 255)
        np.testing.assert_array_equal(raw, mask * 10.0)
        shapes.add(mask.shape)
        changed += mask.shape != target.shape or not np.array_equal(mask, target)
    assert shapes == {crop or target.shape}
    assert changed > 5


@pytest.mark.parametrize("augmentation", ["none", "light", "strong"])
@pytest.mark.parametrize("crop", [None, (32, 32)])
def test_a_function_of_the_numbers_alone(pair, augmentation, crop):
    image, target = pair
    one, two = (ImageTransform(None, crop, augmentation) for _ in range(2))
    two(image, target, rng(9))  # what came before does not matter
    for seed in range(5):
        first, second = one(image, target, rng(seed)), two(image, target, rng(seed))
        np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(first[1], second[1])
        assert first[1].shape == (crop or target.shape)
        assert set(np.unique(first[1])) <= set(np.unique(target))


def test_steps_are_independent(pair):
    """Both mirrorings: each of the four combinations occurs."""
    image, target = pair
    transform = ImageTransform(None, None, "light", any_orientation=True)
    seen = set()
    for seed in range(40):
        mask = transform(image, target, rng(seed))[1]
        seen |= {k for k in range(4) if np.array_equal(mask, target[:: 1 - 2 * (k & 1), :: 1 - (k & 2)])}
    assert seen == {0, 1, 2, 3}


def test_resizing(pair):
    image, target = pair
    done, mask = ImageTransform(image_size=(12, 16))(image, target, rng(0))
    assert done.shape == (12, 16, 3)
    np.testing.assert_array_equal(mask, target[::4, ::4])


def test_inputs_are_left_alone(pair):
    image, target = pair
    before = image.copy(), target.copy()
    ImageTransform(None, (32, 32), "strong")(image, target, rng(0))
    np.testing.assert_array_equal(image, before[0])
    np.testing.assert_array_equal(target, before[1])
