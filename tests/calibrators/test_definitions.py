"""Each calibrator computes its formula: slow numpy oracles, counts, identities, gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from lightning_calib.calibrators import CALIBRATORS
from tests.calibrators.helpers import NAMES, hard_logits, kinds, randomized, seeds
from tests.features import build
from tests.references import calibrators as oracle

COUNTS = {
    "identity": lambda c: (0, 0),
    "ts": lambda c: (1, 1),
    "ets": lambda c: (4, 3),
    "vs": lambda c: (2 * c, 2 * c - 1),
    "ms": lambda c: (c * (c + 1), c**2 - 1),
    "ms_c": lambda c: (c**2 + 1, c * (c - 1)),
    "dc": lambda c: (c * (c + 1), c**2 - 1),
    "lts": lambda c: (7 * (25 * c + 1), 7 * (25 * c + 1)),
    "lts_ti": lambda c: (7 * (25 * c + 1), 7 * (25 * c + 1)),
    "cdc": lambda c: (c**2 * (c + 1), c * (c**2 - 1)),
    "cms_ap": lambda c: (c * (c**2 + 1), c**2 * (c - 1)),
    "cms_op": lambda c: (c * (c**2 + 1), c**2 * (c - 1)),
    "gs": lambda c: (6 * c, 6 * c),
    "fts": lambda c: (1 + 8 * 4, 1 + 8 * 3),
    "case_ts": lambda c: (1 + 4 * 2, 1 + 4),
    "fts_net": lambda c: (16 * (12 + c + 2) + 1, 16 * (12 + c + 2) + 1),
    "bias_only": lambda c: (c, c),
    "squeezed": lambda c: (1, 1),
    "order_stack": lambda c: (3 + 1 + c * (c**2 + 1), 2 + 1 + c**2 * (c - 1)),
    "argmax_stack": lambda c: (2 + c * (c**2 + 1), 1 + c**2 * (c - 1)),
}


def numpy_parameters(calibrator):
    return {key: value.detach().double().numpy() for key, value in calibrator.named_parameters()}


def voxelwise(function, logits):
    """Apply an oracle to every voxel of (B, C, *S)."""
    rows = logits.double().movedim(1, -1).reshape(-1, logits.shape[1]).numpy()
    mapped = np.array([function(row) for row in rows])
    return torch.from_numpy(mapped).view(*logits.movedim(1, -1).shape).movedim(-1, 1)


@pytest.mark.parametrize("num_classes", [2, 5, 20])
@pytest.mark.parametrize("name", NAMES)
def test_parameter_counts(name, num_classes):
    calibrator = build(name, num_classes)
    assert (calibrator.num_optimized, calibrator.num_identifiable) == COUNTS[name](num_classes)


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_starts_at_the_identity(name, seed, kind):
    logits = hard_logits(seed, kind, 6)
    expected = logits.double().log_softmax(1)
    torch.testing.assert_close(build(name, 6)(logits).double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["cms_ap", "cms_op"])
def test_softplus_form_starts_near_the_identity(name):
    logits = hard_logits(0, "normal", 20)
    difference = build(name, 20, parametrization="softplus")(logits) - logits.log_softmax(1)
    assert 1e-5 < difference.abs().max() < 0.1


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds, kind=kinds)
@settings(max_examples=25)
def test_outputs_are_normalised_and_finite(name, seed, kind):
    log_probs = randomized(name, 5, seed)(hard_logits(seed, kind, 5))
    assert torch.isfinite(log_probs).all()
    torch.testing.assert_close(log_probs.logsumexp(1), torch.zeros(1, 4, 6), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_that_underflow_stay_finite(name):
    logits = torch.tensor([1e4, 0.0, -1e4]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    log_probs = build(name, 3)(logits)
    torch.testing.assert_close(log_probs[0, :, 0, 0], torch.tensor([0.0, -1e4, -2e4]))


@given(seed=seeds)
@settings(max_examples=20)
def test_dirichlet_is_matrix_scaling_of_log_probabilities(seed):
    dirichlet, matrix = randomized("dc", 5, seed), build("ms", 5)
    matrix.load_state_dict(dirichlet.state_dict())
    logits = hard_logits(seed, "normal", 5, torch.float64)
    torch.testing.assert_close(dirichlet(logits), matrix(logits.log_softmax(1)), rtol=1e-5, atol=1e-5)


@given(seed=seeds)
def test_constrained_rows_sum_alike(seed):
    sums = randomized("ms_c", 7, seed, dtype=torch.float64).assemble()[0].sum(-1)
    torch.testing.assert_close(sums, sums[:, :1].expand_as(sums), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["vs", "ms", "ms_c", "ts"])
def test_affine_calibrators_apply_their_assembled_matrix(name):
    calibrator = randomized(name, 5, 3, dtype=torch.float64)
    logits = hard_logits(2, "normal", 5, torch.float64)
    weight, bias = (tensor[0].detach().numpy() for tensor in calibrator.assemble())
    expected = voxelwise(lambda z: oracle.log_softmax(weight @ z + bias), logits)
    torch.testing.assert_close(calibrator(logits), expected, rtol=0, atol=1e-10)


@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_ets_against_the_oracle(seed, kind):
    calibrator = build("ets", 4).double()
    rng = np.random.default_rng(seed)
    weights, temperature = rng.dirichlet(np.ones(3)), float(np.exp(rng.normal()))
    with torch.no_grad():
        calibrator.weights.copy_(torch.from_numpy(weights))
        calibrator.log_temperature.fill_(math.log(temperature))
    logits = hard_logits(seed, kind, 4, torch.float64)
    expected = voxelwise(lambda z: oracle.ensemble_temperature(z, temperature, weights), logits)
    torch.testing.assert_close(calibrator(logits), expected, rtol=1e-12, atol=1e-12)


def test_ets_weights_reach_zero_and_leave_it():
    calibrator = build("ets", 3)
    logits = torch.tensor([[4.0, 0.0, 0.0]] * 8)
    calibrator(logits)[:, 1].sum().neg().backward()  # the unlikely class is right: the uniform part should grow
    assert calibrator.weights.grad[2] < calibrator.weights.grad[0]
    with torch.no_grad():
        calibrator.weights.copy_(torch.tensor([0.8, -0.3, 0.4]))
    calibrator.project_()
    torch.testing.assert_close(calibrator.weights.detach(), torch.tensor([0.7, 0.0, 0.3]))


@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_cdc_against_the_oracle(seed, kind):
    calibrator = randomized("cdc", 5, seed, dtype=torch.float64)
    logits = hard_logits(seed, kind, 5, torch.float64)
    p = numpy_parameters(calibrator)
    expected = voxelwise(lambda z: oracle.conditional_dirichlet(z, p["weight"], p["bias"]), logits)
    torch.testing.assert_close(calibrator(logits), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["cms_ap", "cms_op"])
@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_cms_against_the_oracle(name, seed, kind):
    """The oracle multiplies by the assembled W; the calibrator works on gaps: both forms agree."""
    calibrator = randomized(name, 5, seed, dtype=torch.float64)
    calibrator.project_()
    logits = hard_logits(seed, kind, 5, torch.float64)
    p, cone = numpy_parameters(calibrator), CALIBRATORS[name].cone
    expected = voxelwise(
        lambda z: oracle.cone_scaling(z, p["inner"], p["first_row"], p["bias_gaps"], p["bias_first"], cone), logits
    )
    torch.testing.assert_close(calibrator(logits), expected, rtol=1e-8, atol=1e-8)


@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_gap_splines_against_the_oracle(seed, kind):
    calibrator = randomized("gs", 4, seed, dtype=torch.float64)
    calibrator.knots.copy_(torch.tensor(np.random.default_rng(seed).exponential(3.0, 5)).cumsum(0))
    calibrator.project_()
    logits = hard_logits(seed, kind, 4, torch.float64)
    slopes, knots = calibrator.coefficients.detach().numpy(), calibrator.knots.numpy()
    expected = voxelwise(lambda z: oracle.gap_splines(z, slopes, knots), logits)
    torch.testing.assert_close(calibrator(logits), expected, rtol=1e-9, atol=1e-9)


@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_feature_temperatures_against_the_oracle(seed, kind):
    calibrator = randomized("fts", 4, seed, dtype=torch.float64, feature_names=["entropy", "votes"], num_knots=3)
    knots = np.array([[0.1, 0.3, 0.8], [0.0, 0.5, 0.6]])
    calibrator.knots.copy_(torch.from_numpy(knots))
    logits = hard_logits(seed, kind, 4, torch.float64)
    features = torch.rand(1, 2, *logits.shape[2:], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    coefficients = calibrator.coefficients.detach().numpy()[0]
    rows = [values.movedim(1, -1).reshape(-1, values.shape[1]).numpy() for values in (logits, features)]
    expected = [oracle.feature_temperature(z, phi, coefficients, knots) for z, phi in zip(*rows, strict=True)]
    found = calibrator(logits, features).movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(found.detach(), torch.from_numpy(np.array(expected)), rtol=1e-9, atol=1e-9)


@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_feature_networks_against_the_oracle(seed, kind):
    calibrator = randomized("fts_net", 4, seed, dtype=torch.float64, feature_names=["entropy", "gap"], num_hidden=3)
    logits = hard_logits(seed, kind, 4, torch.float64)
    features = torch.rand(1, 2, *logits.shape[2:], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    parameters = [value.detach().numpy() for value in calibrator.parameters()]
    rows = [values.movedim(1, -1).reshape(-1, values.shape[1]).numpy() for values in (logits, features)]
    expected = [oracle.feature_network(z, phi, *parameters) for z, phi in zip(*rows, strict=True)]
    found = calibrator(logits, features).movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(found.detach(), torch.from_numpy(np.array(expected)), rtol=1e-9, atol=1e-9)


@given(seed=seeds, kind=kinds)
@settings(max_examples=20)
def test_gap_splines_are_the_identity_at_first_whatever_the_knots(seed, kind):
    calibrator, logits = build("gs", 5), hard_logits(seed, kind, 5)
    calibrator.knots.copy_(torch.rand(5, generator=torch.Generator().manual_seed(seed)).cumsum(0))
    assert torch.equal(calibrator(logits), build("identity", 5)(logits))


@pytest.mark.parametrize("name", ["cms_ap", "cms_op"])
def test_first_row_and_first_bias_matter_to_the_penalty_only(name):
    calibrator, logits = build(name, 4), hard_logits(1, "normal", 4)
    before, free = calibrator(logits), calibrator.penalty(1.0, 1.0)
    with torch.no_grad():
        calibrator.first_row.add_(0.3)
        calibrator.bias_first.add_(0.3)
    assert torch.equal(calibrator(logits), before)
    assert float(free.detach()) == 0.0
    assert calibrator.penalty(1.0, 1.0) > 0.1


@pytest.mark.parametrize("name", ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op", "vs", "ts"])
@given(seed=seeds)
@settings(max_examples=10)
def test_penalty_is_the_papers(name, seed):
    calibrator = randomized(name, 3, seed, dtype=torch.float64)
    weights, biases = (tensor.detach().numpy() for tensor in calibrator.assemble())
    expected = []
    for w, b in zip(weights, biases, strict=True):
        off = sum(w[i, j] ** 2 for i in range(3) for j in range(3) if i != j)
        expected.append(0.7 / 6 * off + 0.2 / 3 * sum(b**2))
    mean, total = sum(expected) / len(expected), sum(expected)
    assert float(calibrator.penalty(0.7, 0.2).detach()) == pytest.approx(mean, rel=1e-12, abs=1e-15)
    assert float(calibrator.penalty(0.7, 0.2, "sum").detach()) == pytest.approx(total, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_penalty_of_the_identity_is_zero(name):
    assert float(build(name, 5).penalty(1.0, 1.0).detach()) == 0.0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "identity"])
def test_gradients(name):
    calibrator = build(name, 3).double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in calibrator.parameters():  # inside the bounds, away from kinks
            parameter.add_(0.1 + 0.2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64))
    logits = torch.randn(1, 3, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    parameters = tuple(calibrator.parameters())
    names = [key for key, _ in calibrator.named_parameters()]

    def function(z, *values):
        return torch.func.functional_call(calibrator, dict(zip(names, values, strict=True)), (z,))

    assert torch.autograd.gradcheck(function, (logits, *parameters), atol=1e-6)


def test_gradient_passes_at_the_bound_of_cms():
    calibrator = build("cms_op", 3)
    calibrator(torch.randn(4, 3))[:, 2].sum().backward()
    off_diagonal = calibrator.inner.grad[:, 0, 1]
    assert (off_diagonal != 0).any()
