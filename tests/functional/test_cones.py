"""Cone coordinates against linear algebra."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.functional import cones, ordering
from lightning_calib.functional.bounds import within
from lightning_calib.functional.experts import BLOCK, apply_experts, winning_class
from tests.references.calibrators import canonical_order, g_matrix

CONES = ["argmax", "order"]
seeds = st.integers(0, 2**31 - 1)


def tied_logits(seed, num_classes, length=30):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, (2, num_classes, length), generator=generator).double()


@pytest.mark.parametrize("cone", CONES)
@given(seed=seeds, num_classes=st.integers(2, 12))
def test_permutation_is_that_of_the_definition(cone, seed, num_classes):
    logits = tied_logits(seed, num_classes)
    permutation, _ = cones.canonical_permutation(logits, cone)
    for b in range(2):
        for v in range(30):
            assert permutation[b, :, v].tolist() == canonical_order(logits[b, :, v].numpy(), cone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@given(seed=seeds, num_classes=st.integers(2, ordering.PAIRED_CLASSES + 2), shape=st.sampled_from([(), (7,), (3, 5)]))
def test_every_way_to_the_order_is_a_stable_sort(dtype, seed, num_classes, shape):
    """Ties, zeros of both signs and the largest numbers, on both sides of the number of classes that are paired."""
    rng = np.random.default_rng(seed)
    largest = float(torch.finfo(dtype).max)
    values = rng.choice(
        [-largest, -1.5, -0.0, 0.0, 1.0, 1.5, largest, *rng.standard_normal(4)], (2, num_classes, *shape)
    )
    logits = torch.from_numpy(values).to(dtype)
    expected = np.argsort(-logits.double().numpy(), axis=1, kind="stable")
    np.testing.assert_array_equal(ordering.descending_order(logits).numpy(), expected)
    np.testing.assert_array_equal(ordering.inverse_permutation(ordering._counted_places(logits)).numpy(), expected)


@pytest.mark.parametrize("cone", CONES)
@given(seed=seeds, num_classes=st.integers(2, 12))
def test_permutations_invert(cone, seed, num_classes):
    logits = tied_logits(seed, num_classes)
    permutation, places = cones.canonical_permutation(logits, cone)
    back = logits.gather(1, permutation).gather(1, places)
    assert torch.equal(back, logits)


@pytest.mark.parametrize("cone", CONES)
@given(seed=seeds, num_classes=st.integers(2, 12))
def test_gaps_are_the_coordinates_and_scores_invert_them(cone, seed, num_classes):
    logits = tied_logits(seed, num_classes)
    canonical = logits.gather(1, cones.canonical_permutation(logits, cone)[0])
    distances = cones.gaps(canonical, cone)
    assert (distances >= 0).all()
    expected = np.einsum("ij,bjn->bin", g_matrix(num_classes, cone), canonical.numpy())[:, 1:]
    np.testing.assert_array_equal(distances.numpy(), expected)
    assert torch.equal(cones.scores_from_gaps(distances, cone), canonical - canonical[:, :1])


@pytest.mark.parametrize("cone", CONES)
@pytest.mark.parametrize("num_classes", [2, 3, 7, 20])
def test_matrices(cone, num_classes):
    g = cones.cone_matrix(num_classes, cone)
    np.testing.assert_array_equal(g.numpy(), g_matrix(num_classes, cone))
    assert torch.equal(cones.inverse_cone_matrix(num_classes, cone) @ g, torch.eye(num_classes, dtype=torch.float64))


@pytest.mark.parametrize("cone", CONES)
@given(seed=seeds)
def test_assembled_maps_keep_the_cone_and_have_equal_row_sums(cone, seed):
    generator = torch.Generator().manual_seed(seed)
    inner = torch.rand(3, 4, 4, generator=generator, dtype=torch.float64)
    first_row = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    weight = cones.assemble_weight(inner, first_row, cone)
    torch.testing.assert_close(weight.sum(-1), first_row[:, :1].expand(3, 5))  # W 1 = a 1
    logits = tied_logits(seed, 5)
    canonical = logits.gather(1, cones.canonical_permutation(logits, cone)[0])
    mapped = torch.einsum("eij,bjn->ebin", weight, canonical)
    for expert in range(3):
        assert (cones.gaps(mapped[expert], cone) >= -1e-9).all()


@given(seed=seeds, num_experts=st.integers(1, 9), length=st.integers(1, 3 * BLOCK))
def test_experts_equal_a_loop(seed, num_experts, length):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_experts, 3, 4, generator=generator, dtype=torch.float64)
    bias = torch.randn(num_experts, 3, generator=generator, dtype=torch.float64)
    features = torch.randn(2, 4, length, generator=generator, dtype=torch.float64)
    expert = torch.randint(0, num_experts, (2, length), generator=generator)
    result = apply_experts(weight, bias, features, expert)
    for b in range(2):
        for v in range(length):
            e = expert[b, v]
            torch.testing.assert_close(result[b, :, v], weight[e] @ features[b, :, v] + bias[e])


@given(seed=seeds, dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
def test_winning_class_is_the_first_maximum(seed, dtype):
    logits = tied_logits(seed, 6).to(dtype)
    expected = [[int(np.argmax(logits[b, :, v].double().numpy())) for v in range(30)] for b in range(2)]
    assert winning_class(logits).tolist() == expected


def test_a_bound_lets_the_gradient_back_in():
    values = torch.tensor([-2.0, 0.0, 0.5, 1.0, 3.0], requires_grad=True)
    bounded = within(values, 0.0, 1.0)
    bounded.sum().backward()
    assert bounded.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert values.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]
