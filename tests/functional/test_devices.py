"""On a device nothing waits for the host inside an image: fake CUDA tensors refuse whatever would."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_calib.functional.binning import scattered_tally, tally
from lightning_calib.functional.boundary import BANDS, Banded
from lightning_calib.functional.classwise import dense_tables, sparse_tables
from lightning_calib.functional.statistics import Contents
from lightning_calib.functional.sweep import chunk_sums
from lightning_calib.functional.truth import Judged
from lightning_calib.functional.voxels import Chunk, Voxels, places

WHOLE = slice(0, 64)


@pytest.mark.parametrize("ignoring", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_chunk_is_summed_on_its_device(ignoring, dtype):
    with FakeTensorMode():
        scores = torch.empty(4, 64, device="cuda", dtype=dtype)
        labels, keep = (torch.empty(64, device="cuda", dtype=kind) for kind in (torch.int64, torch.bool))
        chosen = places(keep, WHOLE, 40) if ignoring else None
        chunk = Chunk.of(labels, WHOLE, chosen)
        voxels, away = Voxels.of(scores, chunk), torch.empty(len(chunk.target), device="cuda")
        judged = Judged(chunk, before=chunk.target, banded=Banded.of(away, BANDS))
        sums = chunk_sums(voxels, judged, Contents(class_bins=50, flips=True, bands=BANDS))
        assert {tensor.device.type for tensor in [voxels.totals, *sums.tensors()]} == {"cuda"}
        assert len(voxels.totals) == (40 if ignoring else 64)


@pytest.mark.parametrize("count", [0, 1000])
def test_tables_of_devices_are_those_of_the_processor(count):
    index, weights = torch.randint(0, 7, (count,)), torch.rand(count).double()
    assert torch.equal(scattered_tally(index, 9), tally(index, 9))
    torch.testing.assert_close(scattered_tally(index, 9, weights), tally(index, 9, weights), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bins", [1, 7, 15, 50, 600])
@pytest.mark.parametrize("voxels", [0, 1, 5000])
def test_class_wise_tables_agree(dtype, num_bins, voxels):
    edges = torch.arange(num_bins + 1, dtype=torch.float64) / num_bins
    near = torch.cat([edges, edges.float().double(), edges.float().nextafter(torch.zeros(1)).double()]).to(dtype)
    probs = torch.cat([(6 * torch.randn(4, voxels, dtype=dtype)).softmax(0), near.expand(4, -1)[:, :voxels]], dim=1)
    probs[torch.rand(probs.shape) < 0.2] = edges[1].to(dtype)  # as float32 below or above the edge, in between others
    count, sums = dense_tables(probs, num_bins)
    few, same = sparse_tables(probs, num_bins)
    assert torch.equal(few, count)
    assert (same - sums).abs().max() <= 1e-13 * probs.double().sum(dim=1).max()
