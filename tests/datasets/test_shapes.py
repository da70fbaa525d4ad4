"""The generated data are the same everywhere, imbalanced, and hard in the ways that are promised."""

import numpy as np
import pytest
import torch

from lightning_calib.datasets.drawing import CHANCE, Style, draw
from lightning_calib.datasets.shapes import Shapes, drawn
from lightning_calib.datasets.shapes3d import Shapes3D


def batches(module):
    return [(b["case_id"], b["image"], b["target"]) for b in module.predict_dataloader()]


@pytest.mark.parametrize("kind", [Shapes, Shapes3D])
def test_the_same_from_a_seed(kind):
    small = {"num_train": 2, "num_val": 1, "num_pool": 3, "size": (16, 24) if kind is Shapes else (8, 16, 16)}
    first = batches(kind(**small))
    drawn.cache_clear()
    again, other = batches(kind(**small)), batches(kind(data_seed=1, **small))
    for (name, image, target), (same, image2, target2) in zip(first, again, strict=True):
        assert name == same
        assert torch.equal(image, image2)
        assert torch.equal(target, target2)
    assert not any(torch.equal(a[1], b[1]) for a, b in zip(first, other, strict=True))


def test_the_seed_of_a_member_does_not_change_the_images():
    one, two = (batches(Shapes(num_pool=2, size=(16, 16), seed=seed)) for seed in (1, 2))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(one, two, strict=True))


def test_parts_hold_different_images():
    module = Shapes(num_train=3, num_val=3, num_pool=3, size=(16, 16))
    images = [module.draw(case)[0].tobytes() for case in module.splits.all]
    assert len(set(images)) == 9


def test_classes_are_imbalanced_and_all_present():
    targets = [draw(np.random.default_rng(n), (64, 64), Style())[1] for n in range(60)]
    shares = np.bincount(np.ravel(targets), minlength=4) / np.size(targets)
    assert 0.45 < shares[0] < 0.75
    assert 0.002 < shares[3] < 0.03
    assert shares[1:3].min() > 0.1
    assert sum(CHANCE) == pytest.approx(1)


def test_annotators_stray_from_the_border():
    """Without wander the target's border follows the image's; with it, the same image gets another target."""

    def pair(wander):
        image, target = draw(np.random.default_rng(3), (64, 64), Style(wander=wander))
        return image, target

    (image, exact), (same, loose) = pair(0.0), pair(0.3)
    np.testing.assert_array_equal(image, same)
    changed = exact != loose
    assert 0.01 < changed.mean() < 0.3


def test_shift_makes_the_pool_harder():
    plain, shifted = Style(), Style().shifted(1.0)
    assert Style().shifted(0.0) == plain
    assert shifted.noise > plain.noise
    assert shifted.wander > plain.wander
    assert shifted.disguise > plain.disguise
    same, harder = (Shapes(num_pool=1, size=(32, 32), shift=shift) for shift in (0.0, 1.0))
    pool, train = same.splits.pool[0], same.splits.train[0]
    assert not np.array_equal(same.draw(pool)[0], harder.draw(pool)[0])
    np.testing.assert_array_equal(same.draw(train)[0], harder.draw(train)[0])
