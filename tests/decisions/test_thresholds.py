"""Costs of masks at every threshold, and detection of lesions, against slow counts."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from lightning_calib.decisions import THRESHOLDS, threshold_table
from lightning_calib.decisions.costs import best_threshold, cost_curve, dice_curve
from lightning_calib.decisions.detection import detections
from tests.references import decisions as slow

GRID = THRESHOLDS.numpy()


def random_maps(seed, shape=(9, 11)):
    rng = np.random.default_rng(seed)
    probs = ndimage.gaussian_filter(rng.random(shape), 0.8)
    probs = (probs - probs.min()) / np.ptp(probs)
    return probs, ndimage.gaussian_filter(rng.random(shape), 0.8) > 0.55


@pytest.mark.parametrize("seed", range(3))
def test_curves_are_counts_of_each_mask(seed):
    probs, truth = random_maps(seed)
    table = threshold_table(torch.from_numpy(probs), torch.from_numpy(truth), torch.ones(probs.shape) > 0).numpy()
    costs, dice = cost_curve(table, 3.0, 2.0), dice_curve(table)
    for k in range(0, len(GRID), 37):
        mask = probs >= GRID[k]
        assert costs[k] == 3 * (truth & ~mask).sum() + 2 * (mask & ~truth).sum()
        assert dice[k] == pytest.approx(slow.dice(mask, truth))
    empty = threshold_table(torch.from_numpy(probs), torch.zeros(probs.shape) > 0, torch.ones(probs.shape) > 0)
    assert np.isnan(dice_curve(empty.numpy())[-1])
    assert dice_curve(empty.numpy())[0] == 0


@pytest.mark.parametrize(("cost_fn", "cost_fp"), [(5, 1), (1, 1), (1, 9)])
def test_calibrated_probabilities_need_no_search(cost_fn, cost_fp):
    """Labels drawn from the probabilities: the theoretical threshold is the best of the grid, within noise."""
    rng = np.random.default_rng(0)
    probs = torch.from_numpy(rng.random(400_000))
    truth = torch.from_numpy(rng.random(400_000)) < probs
    costs = cost_curve(threshold_table(probs, truth, torch.ones_like(truth)).numpy(), cost_fn, cost_fp)
    theory = best_threshold(cost_fn, cost_fp)
    assert GRID[costs.argmin()] == pytest.approx(theory, abs=0.03)
    assert costs[np.searchsorted(GRID, theory)] <= 1.002 * costs.min()


@pytest.mark.parametrize("shape", [(14, 15), (7, 8, 9)])
@pytest.mark.parametrize("overlap", [0.01, 0.1, 0.5])
def test_lesions_are_matched_by_their_overlap(shape, overlap):
    probs, truth = random_maps(5, shape)
    levels = [0.0, 0.3, 0.5, 0.6, 0.8, 1.1]
    found = detections(probs, truth, levels, overlap)
    lesions = slow.parts(truth)
    assert found.lesions == len(lesions)
    for n, level in enumerate(levels):
        masks = slow.parts(probs >= level)
        good = {
            (a, b) for a, x in enumerate(lesions) for b, y in enumerate(masks) if len(x & y) >= overlap * len(x | y)
        }
        assert found.found[n] == len({a for a, _ in good})
        assert found.false[n] == len(masks) - len({b for _, b in good})
    nothing = detections(probs, np.zeros(shape, dtype=bool), levels)
    assert nothing.lesions == 0
    assert nothing.false.tolist() == [len(slow.parts(probs >= level)) for level in levels]
