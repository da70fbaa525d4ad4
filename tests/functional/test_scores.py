"""Every score against a slow oracle, at the corners of its definition too."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib import functional as F
from tests.references import metrics as oracle

IGNORE = 255


def miscalibrated(seed, classes=4, shape=(9, 7), batch=2, ignored=0.2):
    """Images whose left half is over- and right half underconfident, with ignored voxels."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, classes, *shape, generator=g)
    sharpness = torch.linspace(0.3, 3.0, shape[-1])
    labels = torch.distributions.Categorical(logits=logits.movedim(1, -1)).sample()
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
        for bins in (15, 50):
            close(s.expected_calibration_error(bins)[i], oracle.ece(voxels, bins))
            close(s.average_calibration_error(bins)[i], oracle.ace(voxels, bins))
            close(s.maximum_calibration_error(bins)[i], oracle.mce(voxels, bins))
        close(s.classwise_calibration_error(20)[i], oracle.classwise_ece(voxels, 20))
