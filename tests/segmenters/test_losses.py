"""Losses against numpy, and what ignored voxels may not do."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.segmenters.losses import (
    LOSSES,
    deep_supervision_loss,
    deep_supervision_weights,
    get_loss,
)

IGNORE = 255


def reference(name, logits, target, ignore_index, background):
    """Slow numpy: voxel by voxel, class by class."""
    z = logits.double().numpy()
    probs = np.exp(z - z.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    voxels = [
        (probs[(b, slice(None), *index)], int(target[(b, *index)]))
        for b in range(target.shape[0])
        for index in np.ndindex(*target.shape[1:])
        if int(target[(b, *index)]) != ignore_index
    ]
    ce = np.mean([-np.log(q[y]) for q, y in voxels]) if voxels else 0.0
    focal = np.mean([-((1 - q[y]) ** 2) * np.log(q[y]) for q, y in voxels]) if voxels else 0.0
    of_class = [[-np.log(q[y]) for q, y in voxels if y == c] for c in range(z.shape[1])]
    roots = [len(losses) ** 0.5 for losses in of_class]
    balanced = sum(r * np.mean(own) for r, own in zip(roots, of_class, strict=True) if own) / max(sum(roots), 1)
    scores = []
    for c in range(z.shape[1]):
        if c == background:
            continue
        overlap = sum(q[c] for q, y in voxels if y == c)
        total = sum(q[c] for q, _ in voxels) + sum(y == c for _, y in voxels)
        scores.append((2 * overlap + 1e-5) / (total + 1e-5))
    dice = 1 - np.mean(scores)
    return {
        "ce": ce,
        "balanced_ce": balanced,
        "focal": focal,
        "dice": dice,
        "dice_ce": dice + ce,
        "dice_balanced_ce": dice + balanced,
    }[name]


def make(seed, shape, classes=4, ignored=0.3):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, classes, *shape, generator=generator)
    target = torch.randint(0, classes, (2, *shape), generator=generator)
    target[torch.rand(2, *shape, generator=generator) < ignored] = IGNORE
    return logits, target


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2)])
@pytest.mark.parametrize("background", [None, 0])
def test_losses_equal_the_slow_reference(name, shape, background):
    logits, target = make(1, shape)
    found = LOSSES[name](logits, target, IGNORE, background)
    assert found.item() == pytest.approx(reference(name, logits, target, IGNORE, background), rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@given(seed=st.integers(0, 1000))
def test_ignored_voxels_change_neither_value_nor_gradient(name, seed):
    logits, target = make(seed, (4, 5))
    other = torch.where((target == IGNORE)[:, None], 7 * torch.randn_like(logits), logits)
    results = []
    for scores in (logits, other):
        scores = scores.clone().requires_grad_()
        loss = LOSSES[name](scores, target, IGNORE, None)
        loss.backward()
        results.append(loss.detach())
        assert not scores.grad.movedim(1, -1)[target == IGNORE].any()
    assert torch.allclose(results[0], results[1], atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_labels_gives_a_finite_loss(name):
    logits = torch.randn(1, 3, 4, 4, requires_grad=True)
    loss = LOSSES[name](logits, torch.full((1, 4, 4), IGNORE), IGNORE, None)
    loss.backward()
    assert loss.isfinite()
    assert not logits.grad.any()


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_scores_are_computed_in_float32(name):
    logits, target = make(2, (4, 4), ignored=0)
    half = LOSSES[name](logits.bfloat16(), target, None, None)
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(LOSSES[name](logits, target, None, None).item(), rel=0.05)


def test_deep_supervision_weighs_each_resolution():
    target = torch.tensor([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 0, 0], [2, 2, 0, 0]]])
    outputs = [torch.randn(1, 3, size, size) for size in (4, 2, 1)]
    halved = torch.tensor([[[0, 1], [2, 0]]])
    expected = 2 / 3 * LOSSES["ce"](outputs[0], target, None, None)
    expected += 1 / 3 * LOSSES["ce"](outputs[1], halved, None, None)
    found = deep_supervision_loss(LOSSES["ce"], outputs, target)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@given(st.integers(1, 8))
def test_weights_are_halved_and_sum_to_one(count):
    weights = deep_supervision_weights(count)
    assert sum(weights) == pytest.approx(1)
    assert all(high == pytest.approx(2 * low) for high, low in pairwise(weights[:-1]))
    assert count == 1 or weights[-1] == 0


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(
        ValueError, match="'dise'; choose one of dice_ce, dice_balanced_ce, ce, balanced_ce, dice, focal"
    ):
        get_loss("dise")
