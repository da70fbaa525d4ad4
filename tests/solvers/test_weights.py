"""Fits with weights of cases and a centre of the ridge end where scipy does."""

import numpy as np
import pytest
import torch

from lightning_calib.solvers import NewtonSolver, fit
from lightning_calib.solvers.coordinates import set_temperature
from lightning_calib.solvers.stream import KeptWalk
from tests.references.fitting import Problem, identity, parameters_of
from tests.solvers.synthetic import confused, fresh

CASES = ["a", "b", "c"]
WEIGHTS = {"a": 5.0, "b": 1.0, "c": 0.25}
IGNORED = 9


def data(num_classes=3, size=20):
    logits, target = confused(num_classes, count=3, size=size)
    target[0, : size // 2] = IGNORED  # cases of different size
    target[2, 0, 1:] = IGNORED
    return [(logits[k : k + 1], target[k : k + 1], [CASES[k]]) for k in range(3)]


def flat(parts, weights=WEIGHTS):
    """Voxels that count, with their labels and weights, as the oracle takes them."""
    logits = torch.cat([part[0].movedim(1, -1).flatten(0, -2) for part in parts])
    target = torch.cat([part[1].flatten() for part in parts])
    shares = [torch.full((part[1].numel(),), weights[part[2][0]] / int((part[1] != IGNORED).sum())) for part in parts]
    keep = target != IGNORED
    return logits[keep].numpy(), target[keep].numpy(), torch.cat(shares).double()[keep].numpy()


@pytest.mark.parametrize("name", ["ts", "ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"])
@pytest.mark.parametrize("eps", [0.01, 1.0])
def test_weighted_fits_with_a_centre_reach_the_optimum(name, eps):
    parts = data()
    calibrator, centre = fresh(name, 3), fresh(name, 3)
    set_temperature(centre, 2.0)
    options = {"lam": 0.0, "mu": 0.0, "eps": eps, "ignore_index": IGNORED}
    certificate = fit(calibrator, parts, case_weights=WEIGHTS, centre=centre, **options)
    logits, target, weights = flat(parts)
    oracle = Problem(name, logits, target, 0.0, 0.0, eps, weights, identity(name, 3) / 2)
    assert certificate.converged
    assert oracle.value(parameters_of(name, calibrator)) == pytest.approx(certificate.objective, abs=1e-9)
    assert abs(certificate.objective - oracle.solve()) < 1e-6
    start = np.tile(identity(name, 3), oracle.experts)
    assert certificate.identity_objective == pytest.approx(oracle.value(start), abs=1e-9)
    assert certificate.num_voxels == len(target)


def test_weights_of_voxels_are_weights_of_cases_spelt_out():
    parts = data()
    spelt = {}
    for _, target, (case,) in parts:
        spelt[case] = torch.full((target.numel(),), 3 * WEIGHTS[case] / int((target != IGNORED).sum())).double()
    results = []
    for weights in (WEIGHTS, spelt):
        calibrator = fresh("cms_op", 3)
        certificate = fit(calibrator, parts, ignore_index=IGNORED, case_weights=weights)
        results.append((certificate.objective, calibrator(parts[0][0])))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-9)
    assert (results[0][1] - results[1][1]).abs().max() < 1e-6


def test_equal_voxels_by_weight_are_the_fit_without_weights():
    parts = data()
    sizes = {case[0]: float((target != IGNORED).sum()) for _, target, case in parts}
    plain = fit(fresh("ms", 3), parts, ignore_index=IGNORED)
    weighted = fit(fresh("ms", 3), parts, ignore_index=IGNORED, case_weights=sizes)
    assert weighted.objective == pytest.approx(plain.objective, abs=1e-9)


def test_a_case_of_weight_0_counts_nothing():
    parts = data()
    without = fit(fresh("cdc", 3), parts[:2], ignore_index=IGNORED, case_weights=WEIGHTS)
    zero = fit(fresh("cdc", 3), parts, ignore_index=IGNORED, case_weights=WEIGHTS | {"c": 0.0})
    assert zero.objective == pytest.approx(without.objective, abs=1e-6)


def test_what_a_first_pass_learned_serves_the_next_strength():
    parts, walk = data(), KeptWalk(fresh("cms_op", 3), IGNORED)
    options = {"lam": 0.0, "mu": 0.0, "ignore_index": IGNORED, "walk": walk, "case_weights": WEIGHTS}
    first = NewtonSolver(fresh("cms_op", 3), eps=1.0, **options)
    first.solve(parts)
    alone, knowing = fresh("cms_op", 3), fresh("cms_op", 3)
    expected = NewtonSolver(alone, eps=0.1, **options).solve(parts)
    second = NewtonSolver(knowing, eps=0.1, known=first, **options)
    assert second.survey is None
    assert second.solve(parts).objective == pytest.approx(expected.objective, abs=1e-9)


def test_wrong_weights_are_refused():
    parts = data()
    with pytest.raises(ValueError, match="case 'c' has no weight"):
        fit(fresh("ts", 3), parts, ignore_index=IGNORED, case_weights={"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="'a' is -1"):
        fit(fresh("ts", 3), parts, case_weights={"a": -1.0})
    with pytest.raises(ValueError, match="weight 0"):
        fit(fresh("ts", 3), parts, ignore_index=IGNORED, case_weights=dict.fromkeys(CASES, 0.0))
