"""Every score against a slow oracle, at the corners of its definition too."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib import functional as F
from lightning_calib.functional.devices import sums_device
from lightning_calib.functional.energy import spread_of
from tests.references import metrics as oracle

IGNORE = 255


def miscalibrated(seed, classes=4, shape=(9, 7), batch=2, ignored=0.2):
    """Images whose left half is over- and right half underconfident, with ignored voxels."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, classes, *shape, generator=g)
    sharpness = torch.linspace(0.3, 3.0, shape[-1])
    gumbel = -torch.empty(logits.shape).exponential_(generator=g).log()
    labels = (logits + gumbel).argmax(1)  # a draw from softmax(logits)
    target = labels.masked_fill(torch.rand(labels.shape, generator=g) < ignored, IGNORE)
    return (logits * sharpness).log_softmax(1), target


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-6, atol=1e-7)


def images(log_probs, target, ignore_index=IGNORE):
    return [oracle.voxels_of(lp.numpy(), y.numpy(), ignore_index) for lp, y in zip(log_probs, target, strict=True)]


@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(1, 6),
    shape=st.sampled_from([(1,), (23,), (5, 6), (3, 4, 5)]),
    ignored=st.sampled_from([0.0, 0.3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_all_scores_match_the_oracle(seed, classes, shape, ignored, dtype):
    log_probs, target = miscalibrated(seed, classes, shape, ignored=ignored)
    target[:, *[0] * len(shape)] = 0  # at least one voxel counts
    log_probs = log_probs.to(dtype).log_softmax(1)
    s = F.image_statistics(log_probs, target, ignore_index=IGNORE, classwise=True)
    for i, voxels in enumerate(images(log_probs, target)):
        close(s.negative_log_likelihood()[i], oracle.nll(voxels))
        close(s.brier_score()[i], oracle.brier(voxels))
        close(s.dice_score()[i], oracle.dice(voxels, classes))
        close(s.mean_iou()[i], oracle.iou(voxels, classes))
        for bins in (15, 50):
            close(s.expected_calibration_error(bins)[i], oracle.ece(voxels, bins))
            close(s.average_calibration_error(bins)[i], oracle.ace(voxels, bins))
            close(s.maximum_calibration_error(bins)[i], oracle.mce(voxels, bins))
        close(s.classwise_calibration_error(20)[i], oracle.classwise_ece(voxels, 20))


@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(11,), (6, 5), (3, 4, 3)]))
def test_flips_and_their_audit_match_the_oracle(seed, shape):
    log_probs, target = miscalibrated(seed, 3, shape)
    reference = log_probs + torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(seed + 1))
    before = reference.argmax(1)
    table = F.flip_table(log_probs, target, reference, IGNORE)
    kinds = (table.flips(), table.harmful, table.beneficial, table.neutral)
    for i, voxels in enumerate(images(log_probs, target)):
        expected = oracle.flips(voxels, before[i][target[i] != IGNORE].tolist())
        assert tuple(int(kind[i]) for kind in kinds) == expected
        assert table.voxels[i] == len(voxels)
    shared = F.image_statistics(log_probs, target, ignore_index=IGNORE, reference=before).flips
    assert all(torch.equal(a, b) for a, b in zip(table, shared, strict=True))


@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(9,), (7, 5), (3, 4, 3)]), sigma=st.sampled_from([0.5, 1.0]))
def test_smoothed_error_matches_the_oracle(seed, shape, sigma):
    log_probs, target = miscalibrated(seed, 3, shape, batch=1)
    target[(0, *[0] * len(shape))] = 0
    expected = oracle.space(log_probs[0].numpy(), target[0].numpy(), sigma, IGNORE)
    assert F.space_error(log_probs, target, sigma, IGNORE).item() == pytest.approx(expected, abs=1e-5)


@given(seed=st.integers(0, 10**6), offset=st.sampled_from([0.0, 1e6]))
def test_free_energy_spread_matches_the_oracle(seed, offset):
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 3, 6, 5, generator=g, dtype=torch.float64)
    target = torch.randint(0, 3, (2, 6, 5), generator=g).masked_fill(logits[:, 0] > 2, IGNORE)
    spread = spread_of(F.free_energy_moments(logits + offset, target, IGNORE))
    for i in range(2):
        expected = oracle.free_energy_std(logits[i].numpy(), target[i].numpy(), IGNORE)
        assert spread[i].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_do_not_change_the_sums(chunk, monkeypatch):
    log_probs, target = miscalibrated(0, 4, (13, 11))
    distance = F.boundary_distance(target, IGNORE)
    options = {"ignore_index": IGNORE, "reference": log_probs.roll(1, 1), "distance": distance, "classwise": True}
    whole = F.image_statistics(log_probs, target, **options)
    spread = F.free_energy_moments(3 * log_probs, target, IGNORE)
    monkeypatch.setattr("lightning_calib.functional.voxels.CHUNK_VOXELS", chunk)
    parts = F.image_statistics(log_probs, target, **options)
    torch.testing.assert_close(vars(parts), vars(whole), rtol=1e-12, atol=0)
    assert torch.equal(parts.confusion, whole.confusion)
    torch.testing.assert_close(F.free_energy_moments(3 * log_probs, target, IGNORE), spread, rtol=1e-9, atol=1e-9)
    flips = F.flip_table(log_probs, target, log_probs.roll(1, 1), IGNORE)
    assert all(torch.equal(a, b) for a, b in zip(flips, whole.flips, strict=True))


def test_saturated_confidences_fill_the_outer_bins():
    """Confidence 1.0 belongs to the last bin, certain errors cost infinite likelihood and a full gap."""
    log_probs = torch.tensor([[0.0, -torch.inf], [0.0, -torch.inf], [-torch.inf, 0.0]])
    target = torch.tensor([0, 1, 1])
    s = F.image_statistics(log_probs, target, classwise=True)
    assert s.bins.voxels[0, -1] == 3
    assert s.bins.voxels.sum() == 3
    assert s.classwise.voxels[0, :, 0].tolist() == [1, 2]
    assert s.classwise.voxels[0, :, -1].tolist() == [2, 1]
    assert s.expected_calibration_error().item() == pytest.approx(1 / 3)
    assert s.negative_log_likelihood().item() == torch.inf
    assert s.brier_score().item() == pytest.approx(2 / 3)


def test_one_class_is_certain_and_right():
    s = F.image_statistics(torch.zeros(1, 1, 3, 3), torch.zeros(1, 3, 3, dtype=torch.int64), classwise=True)
    assert s.expected_calibration_error().item() == 0
    assert s.classwise_calibration_error().item() == 0
    assert s.dice_score().item() == 1
    assert s.negative_log_likelihood().item() == 0


SCORES = [
    F.negative_log_likelihood,
    F.brier_score,
    F.dice_score,
    F.expected_calibration_error,
    F.average_calibration_error,
    F.maximum_calibration_error,
    F.classwise_calibration_error,
    F.boundary_aware_calibration_error,
    F.space_error,
]


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.__name__)
def test_nothing_to_count_is_nan_with_a_warning(score):
    log_probs = torch.randn(2, 3, 4, 4).log_softmax(1)
    target = torch.randint(0, 3, (2, 4, 4))
    target[1] = IGNORE
    with pytest.warns(UserWarning, match="1 of 1 images have no voxel"):
        assert score(log_probs[1:], target[1:], ignore_index=IGNORE).isnan()
    options = {} if score in (F.boundary_aware_calibration_error, F.space_error) else {"average": "image"}
    with pytest.warns(UserWarning, match=r"1 of 2 images have no voxel .* Images: 1"):
        both = score(log_probs, target, ignore_index=IGNORE, **options)
    assert both == score(log_probs[:1], target[:1], ignore_index=IGNORE, **options)


def test_dice_leaves_out_absent_classes_and_the_background():
    log_probs = torch.tensor([[0.9, 0.05, 0.05]] * 4).log()
    assert F.dice_score(log_probs, torch.tensor([0, 0, 0, 0])).item() == 1
    assert F.dice_score(log_probs, torch.tensor([0, 0, 0, 1])).item() == pytest.approx((6 / 7 + 0) / 2)
    assert F.dice_score(log_probs, torch.tensor([0, 0, 0, 1]), include_background=False).item() == 0
    with pytest.warns(UserWarning, match="no voxel"):
        assert F.dice_score(log_probs, torch.tensor([0, 0, 0, 0]), include_background=False).isnan()
    with pytest.raises(ValueError, match="background 3 is not one of the 3 classes"):
        F.dice_score(log_probs, torch.tensor([0, 0, 0, 0]), include_background=False, background=3)


def test_voxels_outside_valid_do_not_count_but_keep_their_distances():
    log_probs, target = miscalibrated(1, 3, (8, 8), ignored=0)
    valid = torch.rand(target.shape) < 0.6
    distance = F.boundary_distance(target)
    masked = F.image_statistics(log_probs, target, valid=valid, distance=distance)
    filled = F.image_statistics(log_probs, target.where(valid, IGNORE), ignore_index=IGNORE, distance=distance)
    torch.testing.assert_close(vars(masked), vars(filled), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    log_probs, target = miscalibrated(2, 3, (16, 16))
    half = F.image_statistics(log_probs.to(dtype), target.to(torch.uint8), ignore_index=IGNORE)
    single = F.image_statistics(log_probs.to(dtype).float(), target, ignore_index=IGNORE)
    torch.testing.assert_close(vars(half), vars(single), rtol=0, atol=0)


def test_memory_layout_does_not_matter():
    log_probs, target = miscalibrated(3, 4, (8, 8))
    expected = F.image_statistics(log_probs, target, ignore_index=IGNORE)
    last = log_probs.contiguous(memory_format=torch.channels_last)
    wide = torch.zeros(2, 4, 8, 12)
    wide[..., :8] = log_probs
    for same in (last, wide[..., :8], log_probs.requires_grad_()):
        got = F.image_statistics(same, target, ignore_index=IGNORE)
        torch.testing.assert_close(vars(got), vars(expected), rtol=0, atol=0)


def test_a_list_of_voxels_is_one_image():
    log_probs, target = miscalibrated(4, 3, (20,), batch=1, ignored=0)
    flat = F.image_statistics(log_probs[0].T, target[0])
    torch.testing.assert_close(vars(flat), vars(F.image_statistics(log_probs, target)), rtol=0, atol=0)


def test_bad_input_is_named():
    log_probs, target = miscalibrated(5, 3, (4, 4), ignored=0)
    with pytest.raises(ValueError, match=r"image 1 of the batch: log_probs are not normalised"):
        F.image_statistics(torch.cat([log_probs[:1], log_probs[1:] * 2]), target)
    with pytest.raises(ValueError, match="not normalised"):
        F.image_statistics(log_probs * torch.nan, target)
    with pytest.raises(ValueError, match="labels from 0 to 255, but there are 3 classes; name the label"):
        F.image_statistics(log_probs, target.index_fill(1, torch.tensor([0]), 255).index_fill(1, torch.tensor(1), 0))
    with pytest.raises(ValueError, match=r"labels of the shape \(2, 4, 4\)"):
        F.image_statistics(log_probs, target[:, :3])
    with pytest.raises(ValueError, match="integer labels"):
        F.image_statistics(log_probs, target.float())
    with pytest.raises(ValueError, match="floating point"):
        F.image_statistics(target[:, None].expand(2, 3, 4, 4), target)
    with pytest.raises(ValueError, match=r"reference classes must have the shape \(2, 4, 4\)"):
        F.flip_rate(log_probs, target, target[:1])
    with pytest.raises(ValueError, match="reference scores"):
        F.flip_rate(log_probs, target, log_probs[:1])
    with pytest.raises(ValueError, match="unknown average 'mean'"):
        F.brier_score(log_probs, target, average="mean")
    with pytest.raises(ValueError, match="sigma must be positive"):
        F.space_error(log_probs, target, sigma=0)
    plain = F.image_statistics(log_probs, target)
    for score in (plain.flip_rate, plain.boundary_aware_calibration_error, plain.classwise_calibration_error):
        with pytest.raises(ValueError, match="these statistics hold no"):
            score()


def test_garbage_under_ignored_voxels_is_harmless():
    log_probs, target = miscalibrated(6, 3, (6, 6))
    broken = log_probs.masked_fill((target == IGNORE)[:, None], torch.nan)
    got = F.image_statistics(broken, target, ignore_index=IGNORE, classwise=True)
    expected = F.image_statistics(log_probs, target, ignore_index=IGNORE, classwise=True)
    torch.testing.assert_close(vars(got), vars(expected), rtol=0, atol=0)


def test_sums_are_taken_where_float64_and_repeatable_sums_exist():
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert sums_device(torch.device("mps")) == cpu
    assert sums_device(cuda) == cuda
    torch.use_deterministic_algorithms(True)
    try:
        assert sums_device(cuda) == cpu  # bincount with weights is not repeatable there
        assert sums_device(cpu) == cpu
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_image_where_nothing_counts_has_sums_of_the_same_type():
    log_probs, target = miscalibrated(7, 3, (4, 5))
    options = {"ignore_index": IGNORE, "reference": log_probs, "classwise": True}
    options["distance"] = F.boundary_distance(target, IGNORE)
    seen = F.image_statistics(log_probs, target, **options)
    blind = F.image_statistics(log_probs, torch.full_like(target, IGNORE), **options)
    assert [t.dtype for t in blind.tensors()] == [t.dtype for t in seen.tensors()]
    assert all((t == 0).all() for t in blind.tensors())
