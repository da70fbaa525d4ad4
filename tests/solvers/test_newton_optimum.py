"""Newton's method ends at the optimum that scipy finds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_calib.solvers import AdamSolver, ConvergenceError, NewtonSolver, fit, regularization
from lightning_calib.solvers.newton import SAMPLE_VALUES
from tests.references.fitting import Problem, parameters_of
from tests.solvers.synthetic import confused, draw, fresh, images

AFFINE = ["ts", "vs", "ms", "ms_c", "dc"]
EXPERTS = ["cdc", "cms_ap", "cms_op"]


def problem(name, logits, target, lam=1e-3, mu=1e-3, eps=1e-8, reduction="mean"):
    voxels = logits.movedim(1, -1).flatten(0, -2).numpy()
    return Problem(name, voxels, target.flatten().numpy(), lam, mu, eps, reduction=reduction)


@pytest.mark.parametrize("name", AFFINE + EXPERTS)
def test_reaches_the_optimum(name):
    logits, target = confused()
    calibrator = fresh(name)
    certificate = fit(calibrator, logits, target)
    oracle = problem(name, logits, target)
    assert certificate.converged
    assert oracle.value(parameters_of(name, calibrator)) == pytest.approx(certificate.objective, abs=1e-9)
    assert abs(certificate.objective - oracle.solve()) < 1e-6
    assert certificate.objective < certificate.identity_objective - 1e-3


@pytest.mark.parametrize("name", ["ms", "cdc", "cms_ap", "cms_op"])
def test_reaches_the_optimum_where_classes_are_absent_and_cells_empty(name):
    logits, target = confused(num_classes=4, count=2, size=24, seed=3)
    target[target == 2] = 1
    logits[:, 3] -= 30  # class 3 is never predicted
    target[target == 3] = 0
    calibrator = fresh(name)
    with pytest.warns(UserWarning, match="classes|voxels"):
        certificate = fit(calibrator, logits, target, lam=1e-4, mu=1e-4)
    assert certificate.missing_classes == [2, 3]
    if name != "ms":
        assert {(3, 0), (0, 2), (1, 3)} <= set(certificate.empty_cells)
        assert 3 in certificate.identity_experts
    oracle = problem(name, logits, target, lam=1e-4, mu=1e-4)
    # Without voxels only the ridge bends: a gradient of 1e-6 may be some 1e-6 above the optimum.
    assert certificate.objective < oracle.solve() + 1e-5


@pytest.mark.parametrize("name", ["ms", "cms_op"])
def test_strong_and_zero_regularisation_reach_the_optimum(name):
    logits, target = confused(num_classes=3, count=2, size=24, seed=5)
    for lam, mu in ((0.0, 0.0), (0.0, 0.1), (10.0, 0.0)):
        certificate = fit(fresh(name, 3), logits, target, lam=lam, mu=mu)
        assert abs(certificate.objective - problem(name, logits, target, lam, mu).solve()) < 1e-6


@pytest.mark.parametrize("name", ["ms", "cdc", "cms_ap"])
def test_the_sum_over_experts_on_request(name):
    logits, target = confused(num_classes=3, count=2, size=24, seed=5)
    strong = {"lam": 0.1, "mu": 0.1}
    mean, total = (fit(fresh(name, 3), logits, target, **strong, reduction=kind) for kind in ("mean", "sum"))
    oracle = problem(name, logits, target, **strong, reduction="sum")
    assert abs(total.objective - oracle.solve()) < 1e-6
    assert (mean.hyperparameters["reduction"], total.hyperparameters["reduction"]) == ("mean", "sum")
    if name == "ms":  # one expert: the mean is the sum
        assert total.objective == mean.objective
    else:
        assert total.objective > mean.objective + 1e-3


@pytest.mark.parametrize("name", ["ts", "ms", "cms_ap"])
def test_adam_approaches_from_above(name):
    logits, target = confused(num_classes=3, count=1, size=24)
    optimum = fit(fresh(name, 3), logits, target).objective
    adam = AdamSolver(fresh(name, 3), lr=0.03, max_epochs=400, patience=60)
    reached = adam.solve([(logits, target, None)]).objective
    assert optimum - 1e-9 <= reached < optimum + 2e-4


@pytest.mark.parametrize("name", ["ts", "ms", "cms_op"])
def test_known_map_is_recovered_as_log_probs(name):
    logits = images(num_classes=3, count=8, size=128, seed=1, dtype=torch.float32)
    truth, found = fresh(name, 3, torch.float32), fresh(name, 3, torch.float32)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in truth.parameters():
            parameter.mul_(0.6).add_(0.1 * torch.rand(parameter.shape, generator=generator) + 0.05)
        expected = truth(logits)
        certificate = fit(found, logits, draw(expected, 2), lam=0, mu=0)
        assert certificate.converged
        assert (found(logits).exp() - expected.exp()).abs().mean() < 0.004


@pytest.mark.parametrize("name", [*AFFINE, *EXPERTS, "gs"])
def test_never_loses_to_the_identity(name):
    logits, _ = confused(num_classes=3, count=1, size=24)
    target = draw(logits.log_softmax(1), 9)  # calibrated as it is
    certificate = fit(fresh(name, 3), logits, target)
    assert certificate.objective <= certificate.identity_objective
    warm = fresh(name, 3)
    with torch.no_grad():
        for parameter in warm.parameters():
            parameter.add_(3)
    with pytest.raises(ConvergenceError, match="max_passes") as caught:
        fit(warm, logits, target, max_passes=1)
    assert caught.value.certificate.objective == pytest.approx(caught.value.certificate.identity_objective)
    assert torch.allclose(warm(logits), logits.log_softmax(1), atol=1e-6)


@pytest.mark.parametrize("name", ["ms", "dc", "cdc", "ms_c", "cms_ap", "cms_op"])
def test_limits_of_strong_regularisation(name):
    logits, target = confused(num_classes=3, count=2, size=24)
    calibrator = fresh(name, 3)
    fit(calibrator, logits, target, lam=1e6, mu=1e6)
    weight, bias = (value.detach() for value in calibrator.assemble())
    diagonal = weight.diagonal(dim1=-2, dim2=-1)
    assert (weight - diagonal.diag_embed()).abs().max() < 1e-4
    assert bias.abs().max() < 1e-4
    if name in ("ms_c", "cms_ap", "cms_op"):
        assert (diagonal - diagonal[:, :1]).abs().max() < 1e-3
        assert not torch.allclose(diagonal, torch.ones_like(diagonal), atol=0.05)


@pytest.mark.parametrize("name", ["ts", "gs", "cms_ap", "cms_op"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_preserving_fits_flip_nothing(name, dtype):
    for seed in range(3):
        logits, target = confused(num_classes=5, count=2, size=32, seed=seed, dtype=dtype)
        calibrator = fresh(name, 5, dtype)
        fit(calibrator, logits, target, lam=0, mu=0)
        log_probs = calibrator(logits)
        assert torch.equal(log_probs.argmax(1), logits.argmax(1))
        if calibrator.preserves == "order":
            ranked = log_probs.gather(1, logits.argsort(dim=1, descending=True, stable=True))
            assert (ranked[:, 1:] <= ranked[:, :-1]).all()


def test_objective_is_what_adam_minimises():
    logits, target = confused(num_classes=3, count=1, size=16)
    for name in ("ts", "gs", "vs", "ms_c", "cdc", "cms_op"):
        calibrator = fresh(name, 3)
        certificate = fit(calibrator, logits, target, eps=0.1)
        nll = torch.nn.functional.nll_loss(calibrator(logits), target).detach()
        total = float((nll + regularization(calibrator, 1e-3, 1e-3, 0.1)).detach())
        assert certificate.objective == pytest.approx(total, abs=1e-9)
        assert certificate.nll == pytest.approx(float(nll), abs=1e-9)


def test_few_passes():
    logits, target = confused(num_classes=8, count=4, size=64, dtype=torch.float32)
    for name in AFFINE:
        assert fit(fresh(name, 8, torch.float32), logits, target).passes < 10


@pytest.mark.parametrize("name", ["cdc", "cms_ap"])
def test_classes_with_a_handful_of_voxels_cost_few_passes(name):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(200_000, 6, generator=generator)
    target = draw(0.4 * logits + torch.tensor([0.0, 0, -1, -4, -7, -9]), seed=1)
    cells = torch.zeros(6, 6).index_put((logits.argmax(1), target), torch.ones(len(target)), accumulate=True)
    assert 0 < (cells < 10).sum() < 20
    certificate = fit(fresh(name, 6, torch.float32), logits, target, lam=1e-5, mu=1e-5)
    assert certificate.converged
    assert certificate.passes < 25  # 50 and more with a sample that knows nothing of them


def test_products_alone_reach_the_optimum(monkeypatch):
    monkeypatch.setattr("lightning_calib.solvers.expert.DENSE_CLASSES", 2)
    logits, target = confused()
    for name in ("ms", "ms_c", "cms_op"):
        certificate = fit(fresh(name), logits, target)
        assert abs(certificate.objective - problem(name, logits, target).solve()) < 1e-6


def test_recovers_from_a_sample_that_misleads():
    logits, target = confused(num_classes=4, count=3, size=64)
    solver = NewtonSolver(fresh("ms"), sample_size=4)
    while not solver.done:
        solver.accumulate(logits, target)
        solver.end_pass()
    oracle = fit(fresh("ms"), logits, target).objective
    assert abs(solver.certificate.objective - oracle) < 1e-6
    assert np.all(np.diff(solver.certificate.history) <= 1e-9)
    assert solver.sample_size > 4


@pytest.mark.parametrize(("promise", "misled"), [(1.0, True), (1e3, False), (math.inf, False)])
def test_a_step_that_falls_short_of_its_promise_calls_for_another_sample(promise, misled):
    logits, target = confused()
    solver = NewtonSolver(fresh("ms"), sample_size=100)
    solver.accumulate(logits, target)
    solver.end_pass()
    (expert,) = solver.experts
    expert.promise *= promise / expert.promise
    expert.best = replace(expert.best, gradient=10 * expert.best.gradient)  # a step promises some 10 times as much
    expert.advance(0.0, objective=1.0)
    assert 0.2 < expert.promise < 200
    assert solver._misled() == [misled]


def test_a_sample_drawn_anew_stays_within_its_memory():
    solver = NewtonSolver(fresh("cdc"))
    for _ in range(20):  # a fit of 120 passes
        solver._resample()
    assert solver.sample_size == SAMPLE_VALUES // 4**2
    assert solver.survey.sampler.size == solver.sample_size
