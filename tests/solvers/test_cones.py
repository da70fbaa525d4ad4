"""Coordinates of conditional matrix scaling against the matrices that they are defined by."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.functional.cones import cone_matrix
from lightning_calib.solvers import cones

CONES = ("argmax", "order")


@pytest.mark.parametrize("cone", CONES)
@given(seed=st.integers(0, 999), num_classes=st.integers(2, 9))
def test_products_without_the_matrix_are_products_with_it(cone, seed, num_classes):
    values = torch.randn(3, num_classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix = cone_matrix(num_classes, cone)
    inverse = torch.linalg.inv(matrix)
    for function, by in (
        (cones.to_gaps, matrix),
        (cones.to_gaps_transposed, matrix.T),
        (cones.from_gaps, inverse),
        (cones.from_gaps_transposed, inverse.T),
    ):
        torch.testing.assert_close(function(values, cone), values @ by.T)
