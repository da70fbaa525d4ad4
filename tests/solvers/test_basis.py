"""Newton's method on calibrators with a basis: gap splines."""

import numpy as np
import pytest
import torch

from lightning_calib.calibrators import BasisCalibrator, build
from lightning_calib.solvers import NewtonSolver, fit
from lightning_calib.solvers.coordinates import coordinates_of, set_temperature
from lightning_calib.solvers.stream import KeptWalk
from lightning_calib.solvers.sums import voxel_losses
from tests.references.fitting import SplineProblem
from tests.solvers.synthetic import confused, draw, fresh, images


def problem(calibrator, logits, target, eps=1e-8, **options):
    voxels = logits.movedim(1, -1).flatten(0, -2).numpy()
    return SplineProblem(voxels, target.flatten().numpy(), calibrator.knots.double().numpy(), eps, **options)


@pytest.mark.parametrize(("num_classes", "eps"), [(2, 1e-8), (4, 1e-8), (4, 1e-2)])
def test_reaches_the_optimum(num_classes, eps):
    logits, target = confused(num_classes)
    calibrator = fresh("gs", num_classes)
    certificate = fit(calibrator, logits, target, eps=eps)
    oracle = problem(calibrator, logits, target, eps)
    slopes = calibrator.coefficients.detach().numpy().ravel()
    assert certificate.converged
    assert oracle.value(slopes) == pytest.approx(certificate.objective, abs=1e-9)
    assert abs(certificate.objective - oracle.solve()) < 1e-6
    assert certificate.objective < certificate.identity_objective - 1e-3


def test_a_known_spline_is_recovered():
    logits = images(num_classes=3, count=8, size=128, seed=1, dtype=torch.float32)
    truth, found = fresh("gs", 3, torch.float32), fresh("gs", 3, torch.float32)
    with torch.no_grad():
        truth.coefficients.copy_(torch.tensor([[0.3, 0.6, 1.2, 0.5, 0.4, 0.2]]).expand(3, -1))
        found.coefficients[:, 0] = 0.9  # bent: it keeps its knots, which are those of the truth
        expected = truth(logits)
        assert fit(found, logits, draw(expected, 2)).converged
        assert (found(logits).exp() - expected.exp()).abs().mean() < 0.004


def test_weights_and_centre():
    logits, target = confused(num_classes=3, count=2, size=24)
    calibrator, centre = fresh("gs", 3), fresh("gs", 3)
    set_temperature(centre, 2.0)
    solver = NewtonSolver(calibrator, eps=0.02, case_weights={"a": 1.0, "b": 3.0}, centre=centre)
    certificate = solver.solve([(logits, target, ["a", "b"])])
    weights = np.repeat([1.0, 3.0], 24 * 24)
    oracle = problem(calibrator, logits, target, 0.02, weights=weights, centre=0.5)
    assert abs(certificate.objective - oracle.solve()) < 1e-6


def test_equal_slopes_are_a_temperature():
    calibrator, scaling = fresh("gs", 5), fresh("ts", 5)
    logits, _ = confused(5)
    for linear in (calibrator, scaling):
        set_temperature(linear, 1.7)
    torch.testing.assert_close(calibrator(logits), scaling(logits), rtol=0, atol=1e-12)


def test_knots_are_quantiles_of_the_information_and_stay_once_they_matter():
    logits, target = confused(num_classes=3, count=2, size=48)
    calibrator = fresh("gs", 3)
    fit(calibrator, logits, target)
    gaps = (logits.amax(1, keepdim=True) - logits).movedim(1, 0).flatten(1)
    probs = (-gaps).softmax(0)
    information, losers = probs * (1 - probs), gaps > 0
    below = [float(information[losers & (gaps <= knot)].sum() / information[losers].sum()) for knot in calibrator.knots]
    np.testing.assert_allclose(below, np.arange(1, 6) / 6, atol=0.03)
    knots = calibrator.knots.clone()
    fit(calibrator, 3 * logits, target)
    assert torch.equal(calibrator.knots, knots)


def test_a_kept_walk_serves_fits_with_other_knots():
    """What is kept of a voxel does not depend on the knots."""
    logits, target = confused(num_classes=3, count=2, size=24)
    batches = [(logits[:1], target[:1], ["a"]), (logits[1:], target[1:], ["b"])]
    walk = KeptWalk(fresh("gs", 3))
    for batch in (batches[0], batches[1]):
        kept, alone = fresh("gs", 3), fresh("gs", 3)
        first = NewtonSolver(kept, walk=walk).solve([batch])
        assert first.objective == NewtonSolver(alone).solve([batch]).objective
        assert torch.equal(kept.knots, alone.knots)
    losses = voxel_losses(kept, walk, batches[0])
    expected = -kept(logits[:1]).gather(1, target[:1, None]).flatten()
    torch.testing.assert_close(losses, expected.float(), rtol=0, atol=1e-6)


def test_what_an_earlier_fit_saw_is_taken_over():
    logits, target = confused(num_classes=3, count=2, size=24)
    first = NewtonSolver(fresh("gs", 3), eps=1e-3)
    first.solve([(logits, target, ["a", "b"])])
    second = NewtonSolver(fresh("gs", 3), eps=1e-3, known=first)
    certificate = second.solve([(logits, target, ["a", "b"])])
    assert torch.equal(second.calibrator.knots, first.calibrator.knots)
    assert certificate.passes == first.passes - 1  # no pass to look at the data


def test_curvature_and_slope_are_derivatives():
    calibrator = build("gs", 3, segments=4).double()
    coordinates = coordinates_of(calibrator)
    generator = torch.Generator().manual_seed(0)
    seen = torch.rand(3, 50, generator=generator, dtype=torch.float64) * 8
    seen -= seen.amin(0)
    target = torch.randint(3, (1, 50), generator=generator)
    weight = torch.rand(50, generator=generator, dtype=torch.float64)
    theta = 0.5 + torch.rand(4, generator=generator, dtype=torch.float64)

    def loss(values):
        return -(coordinates.scores(values, seen).log_softmax(0).gather(0, target)[0] * weight).sum()

    probs = coordinates.scores(theta, seen).softmax(0)
    residual = probs.scatter_add(0, target, -torch.ones_like(probs[:1])) * weight
    gradient, hessian = (
        derive(loss, theta) for derive in (torch.autograd.functional.jacobian, torch.autograd.functional.hessian)
    )
    torch.testing.assert_close(coordinates.slope(residual, seen).detach(), gradient)
    torch.testing.assert_close(coordinates.curvature(probs, seen, weight), hessian)


class Tempered(BasisCalibrator):
    """``1/T`` is linear in one feature of the voxel."""

    looks_at = "features"
    feature_names = ("doubt",)

    def identity(self):
        return torch.tensor([1.0, 0.0])

    def basis(self, gaps, features=None):
        return torch.cat([torch.ones_like(features), features], 1).unsqueeze(2) * gaps.unsqueeze(1)


def test_features_reach_the_fit_and_the_call():
    logits, _ = confused(num_classes=3, count=2, size=64)
    doubt = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = draw((logits * (0.2 + 0.7 * doubt)).log_softmax(1), 3)
    found = Tempered(3).double()
    batches = [(logits[i : i + 1], target[i : i + 1], [str(i)], doubt[i : i + 1]) for i in range(2)]
    certificate = fit(found, batches)
    np.testing.assert_allclose(found.coefficients.detach().numpy(), [[0.2, 0.7]], atol=0.06)
    nll = torch.nn.functional.nll_loss(found(logits, doubt), target)
    assert certificate.nll == pytest.approx(float(nll.detach()), abs=1e-9)
    rows, marks = logits.movedim(1, -1).reshape(-1, 3), doubt.reshape(-1, 1)
    again = Tempered(3).double()
    fit(again, [(rows, target.flatten(), None, marks)])
    torch.testing.assert_close(again.coefficients, found.coefficients, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"looks at the features doubt: call it with logits and features \(B, 1"):
        found(logits)
    with pytest.raises(ValueError, match="expected the shape"):
        found(logits, doubt[..., :4])
