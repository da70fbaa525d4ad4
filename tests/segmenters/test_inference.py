"""Images smaller than the window: mirrored out as training does it, so that a network sees what it learnt on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.datasets.volume_transforms import pad_to
from lightning_calib.segmenters import Inference
from lightning_calib.segmenters.inference import mirror_out

sizes = st.lists(st.integers(1, 9), min_size=3, max_size=3)


@given(sizes, sizes)
def test_mirroring_is_that_of_numpy(shape, window):
    image = torch.arange(np.prod(shape)).view(1, 1, *shape)
    inside, padded = mirror_out(image, window)
    widths = [(max(w - s, 0) // 2, max(w - s, 0) - max(w - s, 0) // 2) for s, w in zip(shape, window, strict=True)]
    assert np.array_equal(padded[0, 0].numpy(), np.pad(image[0, 0].numpy(), widths, mode="symmetric"))
    assert torch.equal(padded[inside], image)


@pytest.mark.parametrize("shape", [(7, 10, 6), (8, 8, 8), (3, 12, 8)])
def test_a_small_volume_is_scored_as_a_training_patch(shape):
    """With a layer that normalises over the whole patch, other surroundings would give other scores."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 3, padding=1), torch.nn.InstanceNorm3d(2)).eval()
    volume = torch.randn(1, *shape)
    window = [max(8, size) for size in shape]
    patch, target = pad_to(volume.numpy(), np.zeros(shape, dtype=np.int64), tuple(window))
    start = [(p - s) // 2 for p, s in zip(target.shape, shape, strict=True)]
    with torch.no_grad():
        expected = network(torch.from_numpy(patch)[None])
        found = Inference(window=window)(network, volume[None])
    expected = expected[(..., *(slice(a, a + s) for a, s in zip(start, shape, strict=True)))]
    assert torch.allclose(found, expected, atol=1e-5)
