"""The bin of a confidence, on edges and beside them, and tables that nest."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.functional import TABLE_BINS, BinTable, bin_index
from lightning_calib.functional.binning import table_size
from tests.references.metrics import bin_of

NESTED = (15, 20, 30, 40, 50)


def around_edges(num_bins, dtype):
    """Every edge k/num_bins in a dtype, with the numbers right below and above."""
    edges = np.array([k / num_bins for k in range(num_bins + 1)], dtype=dtype)
    near = np.concatenate([np.nextafter(edges, dtype(-1)), edges, np.nextafter(edges, dtype(2))])
    return torch.from_numpy(near[(near >= 0) & (near <= 1)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_bins", NESTED)
def test_fine_bins_nest_exactly_on_edges_and_beside_them(num_bins, dtype):
    for bins in (num_bins, TABLE_BINS):
        confidence = around_edges(bins, dtype)
        direct = bin_index(confidence, num_bins)
        nested = bin_index(confidence, TABLE_BINS) // (TABLE_BINS // num_bins)
        assert torch.equal(direct, nested)


@given(st.floats(0, 1), st.sampled_from(NESTED), st.booleans())
def test_any_confidence_nests_and_matches_the_oracle(confidence, num_bins, single):
    value = torch.tensor([confidence], dtype=torch.float32 if single else torch.float64)
    index = bin_index(value, num_bins).item()
    assert index == bin_index(value, TABLE_BINS).item() // (TABLE_BINS // num_bins)
    assert index == bin_of(value.item(), num_bins)


def test_single_precision_bins_are_the_floor_of_the_exact_product():
    confidence = around_edges(TABLE_BINS, np.float32)
    exact = [min(math.floor(Fraction(c) * TABLE_BINS), TABLE_BINS - 1) for c in confidence.tolist()]
    assert bin_index(confidence, TABLE_BINS).tolist() == exact


def test_last_bin_is_closed_and_first_holds_zero():
    assert bin_index(torch.tensor([0.0, 1.0]), 15).tolist() == [0, 14]


def test_bins_that_do_not_nest_are_refused():
    table = BinTable(*(torch.zeros(600) for _ in range(3)))
    with pytest.raises(ValueError, match="7 bins do not nest in a table of 600"):
        table.coarsen(7)
    with pytest.raises(ValueError, match="at least 1"):
        table_size(0)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40), st.sampled_from(NESTED))
def test_coarse_tables_are_exact(events, num_bins):
    confidence = torch.tensor([c for c, _ in events], dtype=torch.float64)
    correct = torch.tensor([t for _, t in events])
    fine = BinTable.of(bin_index(confidence, TABLE_BINS), correct, confidence, TABLE_BINS).coarsen(num_bins)
    direct = BinTable.of(bin_index(confidence, num_bins), correct, confidence, num_bins)
    assert torch.equal(fine.voxels, direct.voxels)
    assert torch.equal(fine.correct, direct.correct)
    torch.testing.assert_close(fine.confidence, direct.confidence, rtol=1e-14, atol=0)


def test_two_to_the_thirty_first_voxels_are_counted_exactly():
    """States of parts add up: 2^31 + 1 voxels, where float32 counts stop at 2^24."""
    g = torch.Generator().manual_seed(0)
    confidence = torch.rand(2**12, generator=g, dtype=torch.float64)
    correct = torch.rand(2**12, generator=g) < confidence
    part = BinTable.of(bin_index(confidence, 50), correct, confidence, 50)
    whole = BinTable(*(column * 2**19 for column in part))
    one = BinTable.of(torch.tensor([49]), torch.tensor([True]), torch.ones(1, dtype=torch.float64), 50)
    more = BinTable(*(a + b for a, b in zip(whole, one, strict=True)))
    assert whole.voxels.sum().item() == 2**31
    assert more.voxels.sum().item() == 2**31 + 1
    assert more.correct.sum().item() == int(correct.sum()) * 2**19 + 1
    assert whole.expected_error().item() == part.expected_error().item()
    assert more.expected_error().item() == pytest.approx(part.expected_error().item(), rel=1e-8)
    assert more.expected_error().item() != part.expected_error().item()
