"""Second derivatives that rounding has made flat or indefinite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.calibrators import build
from lightning_calib.solvers.coordinates import coordinates_of
from lightning_calib.solvers.hessian import DenseHessian, ProductHessian
from lightning_calib.solvers.model import Regularizer, SampleModel
from lightning_calib.solvers.sample import Sample


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


def sample_model(name, num_classes, count=400, lam=1e-2):
    """A model of voxels that the calibrator's own family has confused."""
    generator = torch.Generator().manual_seed(num_classes)
    features = 3 * torch.randn(num_classes, count, generator=generator, dtype=torch.float64)
    coordinates = coordinates_of(build(name, num_classes))
    centre = coordinates.identity()
    regularizer = Regularizer.build(coordinates, lam, lam, 1e-8, centre)
    weight = 0.1 + torch.rand(count, generator=generator, dtype=torch.float64)
    position = torch.randint(0, num_classes, (count,), generator=generator)
    return SampleModel(Sample(features, position, weight), float(weight.sum()), regularizer)


@pytest.mark.parametrize("name", ["ms", "ms_c", "cms_ap", "cms_op"])
def test_products_are_those_of_the_written_hessian(name):
    model = sample_model(name, 5)
    theta = model.coordinates.identity() * 0.7
    dense, products = DenseHessian(model, theta), ProductHessian(model, theta)
    for hessian in (dense, products):
        hessian.damping = 0.1 * model.metric
    vector = torch.randn(len(theta), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(products.product(vector), dense.product(vector), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["ms", "ms_c", "cms_ap", "cms_op"])
@given(seed=st.integers(0, 99))
@settings(max_examples=5)
def test_conjugate_gradients_come_near_to_the_solution(name, seed):
    model = sample_model(name, 5)
    theta = model.coordinates.identity() * 0.7
    hessian, generator = ProductHessian(model, theta), torch.Generator().manual_seed(seed)
    hessian.damping = 1e-3 * model.metric
    free = torch.rand(len(theta), generator=generator) < (0.8 if name.startswith("cms") else 1.0)
    right = hessian.product(torch.randn(len(theta), generator=generator, dtype=torch.float64))
    found = hessian.solve(free, right)
    assert (found[~free] == 0).all()
    dense = DenseHessian(model, theta)
    dense.damping = hessian.damping
    exact = dense.solve(free, right)
    gap = found - exact
    assert gap @ dense.product(gap) < 0.2 * (exact @ dense.product(exact))  # in the norm of the quadratic


@pytest.mark.parametrize("name", ["ms", "ms_c"])
def test_blocks_take_fewer_products_than_the_diagonal(name):
    model = sample_model(name, 12, count=3000)
    model.features[1:] += model.features[0]  # what classes see hangs together
    hessian = ProductHessian(model, model.coordinates.identity() / 4)
    products, plain = [], hessian.product
    hessian.product = lambda vector: products.append(vector) or plain(vector)
    free = torch.ones(model.coordinates.size, dtype=torch.bool)
    right = torch.randn(len(free), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    hessian.solve(free, right)
    by_rows, hessian.blocks = len(products), None
    products.clear()
    hessian.solve(free, right)
    assert 2 * by_rows < len(products)
