"""Second derivatives that rounding has made flat or indefinite."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.solvers.hessian import DenseHessian


def dense(matrix):
    """A Hessian of given entries."""
    hessian = object.__new__(DenseHessian)
    hessian.matrix, hessian.damping = matrix.clone(), 0.0
    return hessian


@given(seed=st.integers(0, 999), size=st.integers(3, 8))
def test_a_step_along_which_all_is_flat_leaves_the_hessian_alone(seed, size):
    generator = torch.Generator().manual_seed(seed)
    steep, step, change = torch.randn(3, size, dtype=torch.float64, generator=generator)
    step = step - steep * (steep @ step) / (steep @ steep)  # flat but for rounding
    matrix = torch.outer(steep, steep)
    hessian = dense(matrix)
    hessian.update(step, change * torch.sign(step @ change))
    assert torch.equal(hessian.matrix, matrix)
    solution = hessian.solve(torch.ones(size, dtype=torch.bool), steep)
    torch.testing.assert_close(matrix @ solution, steep)


@pytest.mark.parametrize("diagonal", [[-1.0, -2.0, 1.0], [-1.0, -1.0, -1.0], [0.0, -1e6, 1e-6]])
def test_an_indefinite_block_is_lifted_until_it_can_be_solved(diagonal):
    hessian = dense(torch.diag(torch.tensor(diagonal, dtype=torch.float64)))
    right = torch.ones(3, dtype=torch.float64)
    solution = hessian.solve(torch.ones(3, dtype=torch.bool), right)
    assert solution.isfinite().all()
    assert solution @ right > 0  # still a direction of descent


def test_an_update_makes_the_quadratic_fit_the_gradients():
    hessian = dense(torch.eye(3, dtype=torch.float64))
    step, change = torch.tensor([1.0, 2.0, 0.0]).double(), torch.tensor([3.0, 1.0, 1.0]).double()
    hessian.update(step, change)
    torch.testing.assert_close(hessian.product(step), change)
