"""Stacks: the mixture they are, what they keep of their parts, their bound, their files."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.calibrators import CALIBRATORS, Identity, Stack, build, load_calibrator, read_header
from lightning_calib.calibrators import save_calibrator as save
from lightning_calib.functional.simplex import nearest_on_simplex, on_simplex
from lightning_calib.solvers import fit, make_solver
from tests.calibrators.helpers import hard_logits, input_dtypes, kinds, randomized, seeds
from tests.calibrators.test_preservation import inversions
from tests.calibrators.test_translation import shifted_pair
from tests.references import calibrators as oracle

PARTS = {
    "order": ("identity", "ts", "ets", "cms_op", "lts_ti"),
    "argmax": ("identity", "cms_ap", "cms_op"),
    None: ("identity", "dc", "cms_op", "cdc"),
}
few_classes = st.integers(2, 8)
kept = st.sampled_from(list(PARTS))


def mixed(names, num_classes, seed, dtype=torch.float32):
    """A stack of parts with any parameters, by weights that may be negative."""
    generator = torch.Generator().manual_seed(seed)
    parts = [randomized(name, num_classes, seed + n, dtype=dtype) for n, name in enumerate(names)]
    stack = Stack(num_classes, parts=parts).to(dtype)
    with torch.no_grad():
        stack.weights.copy_(torch.rand(len(parts), generator=generator) - 0.2)
    return stack


@given(seed=seeds, kind=kinds, keep=kept)
@settings(max_examples=20)
def test_it_is_the_mixture_of_its_parts(seed, kind, keep):
    stack = mixed([name for name in PARTS[keep] if name != "lts_ti"], 4, seed, torch.float64)
    logits = hard_logits(seed, kind, 4, torch.float64)
    maps = [part(logits).detach() for part in stack.parts]
    rows = torch.stack(maps).movedim(2, -1).flatten(1, -2)  # (K, voxels, C)
    expected = torch.from_numpy(oracle.mixture(rows.numpy(), stack.weights.detach().numpy()))
    found = stack(logits).detach().movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_ets_is_a_stack():
    ets, scaling, uniform = (build(name, 4).double() for name in ("ets", "ts", "vs"))
    with torch.no_grad():
        ets.weights.copy_(torch.tensor([0.25, 0.25, 0.5]))
        ets.log_temperature.fill_(0.7)
        scaling.log_temperature.fill_(0.7)
        uniform.scale.zero_()
    stack = Stack.of([scaling, Identity(4), uniform], [0.25, 0.25, 0.5])
    logits = hard_logits(0, "normal", 4, torch.float64)
    torch.testing.assert_close(stack(logits), ets(logits), rtol=1e-12, atol=1e-12)


@given(seed=seeds, kind=kinds, num_classes=few_classes, dtype=input_dtypes, keep=st.sampled_from(["order", "argmax"]))
def test_it_preserves_the_weakest_of_its_parts(seed, kind, num_classes, dtype, keep):
    stack = mixed(PARTS[keep], num_classes, seed)
    logits = hard_logits(seed, kind, num_classes, dtype)
    log_probs = stack(logits)
    assert stack.preserves == keep
    assert torch.equal(log_probs.argmax(1), logits.argmax(1))
    assert keep == "argmax" or inversions(log_probs, logits) == 0


@given(seed=seeds, num_classes=few_classes, keep=kept)
@settings(max_examples=30)
def test_it_is_translation_invariant_where_its_parts_are(seed, num_classes, keep):
    stack = mixed(PARTS[keep], num_classes, seed)
    logits, shifted = shifted_pair(seed, num_classes)
    assert stack.translation_invariant
    assert torch.equal(stack(shifted), stack(logits))


def test_one_part_decides_what_is_lost():
    logits, shifted = shifted_pair(0, 4, limit=100.0)
    stack = Stack.of([Identity(4), randomized("ms", 4, 0)], [0.5, 0.5])
    assert (stack.translation_invariant, stack.preserves) == (False, None)
    assert (stack(shifted) - stack(logits)).abs().max() > 1e-2
    assert (stack(logits).argmax(1) != logits.argmax(1)).any()
    local = Stack.of([Identity(4), build("lts", 4)], [0.5, 0.5])
    assert (local.translation_invariant, local.preserves, local.looks_at) == (False, "order", "neighbourhood")


@given(seed=seeds, kind=kinds, num_classes=few_classes, keep=kept, weight=st.floats(1e-6, 1.0))
def test_it_loses_at_most_the_log_of_the_weight_of_the_identity(seed, kind, num_classes, keep, weight):
    """At every voxel, whatever its label."""
    stack = mixed(PARTS[keep], num_classes, seed, torch.float64)
    rest = torch.rand(len(stack.parts) - 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1e-3
    with torch.no_grad():
        stack.weights.copy_(torch.cat([torch.tensor([weight]), (1 - weight) * rest / rest.sum()]))
    logits = hard_logits(seed, kind, num_classes, torch.float64)
    excess = Identity(num_classes)(logits) - stack(logits)
    assert stack.excess_bound == pytest.approx(-math.log(weight), rel=1e-6, abs=1e-12)
    assert float(excess.detach().max()) <= stack.excess_bound + 1e-9


def test_parts_of_weight_0_are_left_out():
    stack = Stack.of([build(name, 3) for name in ("identity", "dc", "cms_op")], [0.0, 0.0, 0.4])
    assert [part.name for part in stack.parts] == ["cms_op"]
    assert stack.mixture().tolist() == [1.0]
    assert (stack.preserves, stack.identity_weight, stack.excess_bound) == ("order", 0.0, math.inf)
    assert "cms_op 1" in repr(stack)


def test_weights_reach_zero_and_leave_it():
    parts = [Identity(3), randomized("ts", 3, 0)]
    stack = Stack(3, parts=parts)
    stack(hard_logits(0, "normal", 3))[:, 0].sum().backward()
    assert float(stack.weights.grad[1]) != 0
    with torch.no_grad():
        stack.weights.copy_(torch.tensor([1.5, -0.2]))
    stack.project_()
    assert stack.weights.tolist() == [1.0, 0.0]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6))
def test_the_nearest_point_of_the_simplex(values):
    """Its conditions: a common surplus on what is positive, none smaller elsewhere."""
    weights = torch.tensor(values, dtype=torch.float64)
    nearest = nearest_on_simplex(weights)
    surplus = weights - nearest
    assert float(nearest.sum()) == pytest.approx(1, abs=1e-9)
    assert float(nearest.min()) >= 0
    assert float((surplus - surplus[nearest > 0].max()).max()) <= 1e-9
    assert float(on_simplex(weights).sum()) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_file_holds_it_with_its_parts(dtype, tmp_path):
    inner = mixed(("identity", "ts"), 3, 1, dtype)
    local = randomized("lts", 3, 2, 0.1, dtype, canonical=True, through_plane=1)
    stack = Stack.of(
        [inner, local, randomized("cms_ap", 3, 3, 0.1, dtype, parametrization="softplus")], [0.2, 0.3, 0.5]
    )
    save(tmp_path / "stack.safetensors", stack.to(dtype), fitted={"weights": [0.2, 0.3, 0.5]})
    loaded = load_calibrator(tmp_path / "stack.safetensors")
    logits = hard_logits(0, "normal", 3)
    assert torch.equal(loaded(logits), stack(logits))
    facts = [(each.translation_invariant, each.preserves, each.looks_at) for each in (stack, loaded)]
    assert facts[0] == facts[1] == (True, "argmax", "neighbourhood")
    header = read_header(tmp_path / "stack.safetensors")
    assert [part["name"] for part in header["options"]["parts"]] == ["stack", "lts", "cms_ap"]
    assert header["options"]["parts"][0]["options"]["parts"][1] == {"name": "ts", "options": {}}


def test_a_file_causes_no_import_of_a_part(tmp_path):
    path = tmp_path / "stack.safetensors"
    save(path, Stack(3, parts=[Identity(3), build("bias_only", 3)]))
    assert [part.name for part in load_calibrator(path).parts] == ["identity", "bias_only"]
    known = CALIBRATORS.registered
    CALIBRATORS.registered = {}
    try:
        with pytest.raises(ValueError, match=r"stack\.safetensors: unknown calibrator 'bias_only'"):
            load_calibrator(path)
    finally:
        CALIBRATORS.registered = known


def test_what_cannot_be_stacked_is_refused():
    with pytest.raises(ValueError, match="a stack of 3 classes in 2D cannot take ts of 4 classes in 2D"):
        Stack(3, parts=[Identity(3), build("ts", 4)])
    with pytest.raises(ValueError, match="a part of positive weight"):
        Stack.of([Identity(3)], [0.0])
    logits = hard_logits(0, "normal", 3)
    for call in (
        lambda: fit(build("stack", 3), logits, logits.argmax(1)),
        lambda: make_solver(build("stack", 3), "adam"),
    ):
        with pytest.raises(ValueError, match="no solver fits stack: it is put together"):
            call()
