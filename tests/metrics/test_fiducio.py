"""Scores beside those of Fiducio, the library of the paper's authors."""

import math

import fiducio
import pytest
import torch

from lightning_calib import functional as F

IGNORED = 255
SHAPES = [(1, 2, 40), (1, 5, 16, 16), (1, 3, 6, 7, 8)]


def example(seed, shape):
    """Log-probabilities in float64, labels that agree with them more often than not, some ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    target = (logits + 3 * torch.randn(shape, generator=generator)).argmax(1)
    target[torch.rand(target.shape, generator=generator) < 0.2] = IGNORED
    target.view(-1)[0] = 0
    return logits.log_softmax(1), target


def by_ours(log_probs, target, **options):
    return {
        "nll": F.negative_log_likelihood(log_probs, target, IGNORED, **options),
        "brier": F.brier_score(log_probs, target, IGNORED, **options),
        "ece": F.expected_calibration_error(log_probs, target, 50, IGNORED, **options),
        "ace": F.average_calibration_error(log_probs, target, 15, IGNORED, **options),
    }


def by_theirs(probs, target, **options):
    return {
        "nll": fiducio.negative_log_likelihood(probs, target, **options),
        "brier": fiducio.brier_score(probs, target, **options),
        "ece": fiducio.expected_calibration_error(probs, target, n_bins=50, **options),
        "ace": fiducio.unweighted_calibration_error(probs, target, n_bins=15, **options),
    }


def floats(figures):
    return {name: float(value) for name, value in figures.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_figures_of_an_image_agree(shape):
    for seed in range(10):  # fixed: their edges are float32, so one voxel in a million is in another bin
        log_probs, target = example(seed, shape)
        expected = by_theirs(log_probs.exp(), target, ignore_index=IGNORED)
        assert floats(by_ours(log_probs, target)) == pytest.approx(expected, abs=1e-9)


def test_the_bins_agree():
    log_probs, target = example(0, (1, 4, 12, 12))
    curve = fiducio.reliability_curve(log_probs.exp(), target, ignore_index=IGNORED, n_bins=15)
    table = F.reliability_table(log_probs, target, 15, IGNORED)
    assert table.voxels.flatten().tolist() == curve.bin_counts.tolist()


def test_tables_of_voxels_agree():
    log_probs, target = example(3, (500, 4))
    expected = by_theirs(log_probs.exp(), target, ignore_index=IGNORED)
    assert floats(by_ours(log_probs, target, average="pool")) == pytest.approx(expected, abs=1e-9)


# What differs.


def test_several_images_are_one_to_theirs_and_ours_has_both():
    """NLL, Brier and ECE of ours are means over images, as the paper's; ``average="pool"`` is theirs."""
    log_probs, target = example(4, (3, 4, 10, 10))
    target[0, 2:] = IGNORED  # images of unequal weight
    expected = by_theirs(log_probs.exp(), target, ignore_index=IGNORED)
    assert floats(by_ours(log_probs, target, average="pool")) == pytest.approx(expected, abs=1e-9)
    single = [by_theirs(p[None].exp(), y[None], ignore_index=IGNORED) for p, y in zip(log_probs, target, strict=True)]
    means = {name: sum(each[name] for each in single) / 3 for name in ("nll", "brier", "ece")}
    found = floats(by_ours(log_probs, target, average="image"))
    assert {name: found[name] for name in means} == pytest.approx(means, abs=1e-9)
    assert abs(means["nll"] - expected["nll"]) > 1e-3


def test_a_mask_of_theirs_is_a_label_of_ours():
    log_probs, target = example(5, (1, 4, 10, 10))
    mask = target != IGNORED
    expected = by_theirs(log_probs.exp(), target.where(mask, 1), mask=mask)
    assert floats(by_ours(log_probs, target)) == pytest.approx(expected, abs=1e-9)


def test_a_confidence_on_an_edge_is_in_their_lower_and_our_upper_bin():
    probs = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    target = torch.tensor([0])
    lower = fiducio.reliability_curve(probs, target, n_bins=4).bin_counts
    upper = F.reliability_table(probs.log(), target, 4).voxels.flatten()
    assert (lower.tolist(), upper.tolist()) == ([0, 0, 1, 0], [0, 0, 0, 1])
    certain = torch.tensor([[1.0, 0.0]], dtype=torch.float64)  # the last bin is closed in both
    assert fiducio.reliability_curve(certain, target, n_bins=4).bin_counts.tolist() == [0, 0, 0, 1]
    table = F.reliability_table(certain.clamp(min=1e-300).log(), target, 4)
    assert table.voxels.flatten().tolist() == [0, 0, 0, 1]


def test_theirs_caps_the_nll_of_a_voxel_and_ours_does_not():
    log_probs = torch.tensor([[0.0, -60.0]], dtype=torch.float64)
    target = torch.tensor([1])
    assert fiducio.negative_log_likelihood(log_probs.exp(), target) == pytest.approx(27.631, abs=1e-3)
    assert float(F.negative_log_likelihood(log_probs, target, average="pool")) == pytest.approx(60.0)


def test_both_take_the_lowest_class_among_equals():
    probs = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    for label, accuracy in ((0, 1.0), (1, 0.0)):
        target = torch.tensor([label])
        expected = fiducio.expected_calibration_error(probs, target)
        assert expected == pytest.approx(abs(accuracy - 0.4))
        found = F.expected_calibration_error(probs.log(), target, 15, average="pool")
        assert float(found) == pytest.approx(expected)


def test_what_has_no_voxel_is_nan_in_both_and_ours_says_so():
    log_probs, target = example(6, (1, 3, 4, 4))
    nothing = torch.full_like(target, IGNORED)
    theirs = by_theirs(log_probs.exp(), nothing, ignore_index=IGNORED)
    with pytest.warns(UserWarning, match="no voxel"):
        ours = by_ours(log_probs, nothing)
    assert all(math.isnan(value) for value in [*floats(ours).values(), *theirs.values()])
