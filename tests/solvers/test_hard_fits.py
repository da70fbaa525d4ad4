"""Fits that are hard: rare classes, experts with few voxels, huge logits. All must end soon, and right or clearly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.calibrators import build
from lightning_calib.solvers import ConvergenceError, NewtonSolver, fit
from lightning_calib.solvers.base import LARGEST_LOGIT
from lightning_calib.solvers.expert import ExpertFit, Point
from lightning_calib.solvers.hessian import DenseHessian
from lightning_calib.solvers.objective import nll_sum, regularization
from lightning_calib.solvers.projected import cubic_minimum
from tests.solvers.synthetic import confused, draw, fresh, images


def street(num_classes=8, voxels=12_000, seed=0):
    """Voxels of classes whose frequencies fall as 1 / k³; the rarest are mostly taken for others."""
    generator = torch.Generator().manual_seed(seed)
    rank = torch.arange(1, num_classes + 1)
    target = torch.multinomial(rank.double().pow(-3), voxels, replacement=True, generator=generator)
    logits = 2 * torch.randn(num_classes, voxels, generator=generator) - 1.5 * rank.log()[:, None]
    logits[target, torch.arange(voxels)] += 6 + 2 * torch.randn(voxels, generator=generator)
    return logits[None], target[None]


@torch.no_grad()
def objective(calibrator, logits, target, lam, mu):
    """The objective by autograd's functions, which share nothing with the solver's sums."""
    total, count = nll_sum(calibrator, logits, target)
    return float(total / count + regularization(calibrator, lam, mu))


@pytest.mark.parametrize("strength", [1e-3, 1e-6])
@pytest.mark.parametrize("sample_size", [None, 400])
def test_rare_classes_take_few_passes(strength, sample_size):
    logits, target = street()
    exact = fit(build("cdc", 8), logits.double(), target, lam=strength, mu=strength, min_voxels=0)
    calibrator = build("cdc", 8)
    found = fit(calibrator, logits, target, lam=strength, mu=strength, sample_size=sample_size, min_voxels=0)
    assert found.passes <= (4 if sample_size is None else 16)
    assert found.objective - exact.objective < 3e-6
    assert abs(found.objective - objective(calibrator, logits, target, strength, strength)) < 1e-6


def test_an_expert_with_all_voxels_in_its_sample_ends_in_two_passes():
    logits, target = confused(4, 2, 24)
    assert fit(fresh("ms"), logits, target, sample_size=10_000, lam=1e-2, mu=1e-2).passes == 2


@pytest.mark.parametrize("name", ["ts", "vs", "ms", "dc", "cdc", "cms_ap", "cms_op", "gs"])
@pytest.mark.parametrize("size", [1e6, 1e20, 3.4e38])
def test_huge_logits_are_refused(name, size):
    logits, target = confused(3, 1, 12, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"logits (reach .*divide all logits|must be within)"):
        fit(build(name, 3), logits / logits.abs().max() * size, target)


@pytest.mark.parametrize("name", ["vs", "ms", "cms_ap", "cms_op"])
def test_large_logits_are_fitted_to_the_optimum(name):
    logits, target = confused(3, 2, 16)
    scale = 0.9 * LARGEST_LOGIT / float(logits.abs().max())
    small = fit(fresh(name, 3), logits, target, lam=0.0, mu=0.0, eps=1e-12)
    large = fit(fresh(name, 3), scale * logits, target, lam=0.0, mu=0.0, eps=1e-12)
    assert large.converged
    assert abs(large.nll - small.nll) < 1e-4


@given(scale=st.floats(-3, 3), seed=st.integers(0, 99), name=st.sampled_from(["ms", "cms_op"]))
@settings(max_examples=12, deadline=None)
def test_the_scale_of_logits_changes_no_optimum(scale, seed, name):
    logits, target = confused(3, 1, 12, seed=seed)
    results = [fit(fresh(name, 3), factor * logits, target, lam=0.0, mu=0.0, eps=1e-12).nll for factor in (1, 2**scale)]
    assert abs(results[0] - results[1]) < 2e-5


def test_second_derivatives_that_are_not_finite_end_the_fit():
    hessian = object.__new__(DenseHessian)
    hessian.matrix, hessian.damping = torch.full((2, 2), torch.nan, dtype=torch.float64), 0.0
    with pytest.raises(ConvergenceError, match="not finite"):
        hessian.solve(torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.float64))


@given(coefficients=st.tuples(*[st.floats(0.1, 10)] * 2, st.floats(1.1, 9)))
def test_the_cubic_finds_the_minimum_of_a_quadratic(coefficients):
    curvature, lowest, excess = coefficients
    length = excess * lowest  # the step went too far
    value = lambda at: curvature * (at - lowest) ** 2  # noqa: E731
    slopes = [2 * curvature * (at - lowest) * length for at in (0, length)]
    share = cubic_minimum(value(length) - value(0), *slopes)
    assert share == pytest.approx(min(max(1 / excess, 0.05), 0.7), rel=1e-6)


def test_a_rejected_step_is_shortened_before_the_model_is_doubted():
    solver = NewtonSolver(fresh("ts", 3), lam=0.0, mu=0.0, eps=0.0)
    expert: ExpertFit = solver.experts[0]
    at = lambda theta, slope, value: Point(  # noqa: E731
        torch.tensor([theta]).double(),
        torch.tensor([slope]).double(),
        torch.tensor([slope]).double(),
        value,
        value,
        1.0,
    )
    expert.best, expert.rejected, expert.phase = at(1.0, -2.0, 1.0), at(3.0, 2.0, 1.0), "search"
    damping = expert.damping
    expert._propose()
    assert expert.trial.tolist() == [2.0]
    assert expert.damping == damping


def test_a_second_sample_is_for_rare_classes():
    logits, drawn = images(8, 4, 96), []
    for voxels, labels in ((logits, draw((0.3 * logits).log_softmax(1), 0)), street()):
        solver = NewtonSolver(build("cdc", 8), sample_size=500, min_voxels=0)
        solver.accumulate(voxels, labels)
        solver.end_pass()
        drawn.append(solver.survey is not None)
    assert drawn == [False, True]


def test_another_sample_is_for_the_experts_that_need_it_and_others_keep_theirs():
    logits, target = street()
    solver = NewtonSolver(build("cdc", 8), sample_size=300, min_voxels=0)
    solver.accumulate(logits, target)
    solver.end_pass()
    wanted, before = solver.survey.wanted, list(solver.samples)
    assert 0 < sum(wanted) < 8
    solver.accumulate(logits, target)
    solver.end_pass()
    for number, drawn in enumerate(wanted):
        assert (solver.samples[number] is not before[number]) == drawn


def test_a_step_of_an_older_sample_that_was_rejected_is_no_doubt_about_the_new_one():
    logits, target = confused(3, 2, 24)
    solver = NewtonSolver(fresh("ms", 3), sample_size=50)
    solver.accumulate(logits, target)
    solver.end_pass()
    expert: ExpertFit = solver.experts[0]
    damping = expert.damping
    expert.take(expert.model, 1e-6)
    expert.receive(expert.best.loss + 1.0, torch.full((3, 4), 0.1).double() * torch.sign(expert.trial.view(3, 4)))
    assert expert.phase == "explore"
    assert expert.damping <= damping


def test_flat_directions_are_followed_to_the_optimum():
    logits, target = street()
    exact = fit(build("cms_op", 8), logits.double(), target, lam=1e-6, mu=1e-6, min_voxels=0, tolerance=1e-9)
    found = fit(build("cms_op", 8), logits, target, lam=1e-6, mu=1e-6, min_voxels=0, sample_size=300)
    assert found.objective - exact.objective < 1e-6
