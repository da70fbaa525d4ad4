"""Fits of temperatures from features: the optimum, the same by every way there, and what is refused."""

import numpy as np
import pytest
import torch

from lightning_calib.calibrators import CaseTemperatureScaling, FeatureTemperatureScaling, build
from lightning_calib.solvers import NewtonSolver, fit
from lightning_calib.solvers.stream import KeptWalk
from tests.references.fitting import FeatureProblem
from tests.solvers.synthetic import draw, images

NAMES = ("entropy", "votes")


def data(count=2, size=32, seed=0):
    """Logits whose temperature is 1 + 3 u for the feature u, another feature that does not matter, and labels."""
    logits = images(num_classes=3, count=count, size=size, seed=seed)
    features = torch.rand(count, 2, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits, features, draw((logits / (1 + 3 * features[:, :1])).log_softmax(1), seed + 1)


def batches(logits, features, target):
    return [(logits[k : k + 1], target[k : k + 1], [str(k)], features[k : k + 1]) for k in range(len(logits))]


def fresh(kind=FeatureTemperatureScaling, **options):
    return kind(3, feature_names=NAMES, **options).double()


def problem(calibrator, logits, features, target, eps):
    rows = [values.movedim(1, -1).flatten(0, -2).numpy() for values in (logits, features)]
    ridge = getattr(calibrator, "ridge", 0.0)
    return FeatureProblem(*rows, target.flatten().numpy(), calibrator.knots.double().numpy(), eps, ridge)


@pytest.mark.parametrize(("kind", "eps"), [(FeatureTemperatureScaling, 1e-8), (CaseTemperatureScaling, 1e-2)])
def test_reaches_the_optimum(kind, eps):
    logits, features, target = data()
    calibrator = fresh(kind)
    certificate = fit(calibrator, batches(logits, features, target), eps=eps)
    oracle = problem(calibrator, logits, features, target, eps)
    found = calibrator.coefficients.detach().numpy().ravel()
    assert certificate.converged
    assert oracle.value(found) == pytest.approx(certificate.objective, abs=1e-9)
    assert abs(certificate.objective - oracle.solve()) < 1e-6
    assert certificate.objective < certificate.identity_objective - 1e-2


def test_the_temperature_is_recovered():
    logits, features, target = data(count=8, size=96)
    calibrator = fresh()
    fit(calibrator, batches(logits, features, target))
    with torch.no_grad():
        found = calibrator.temperature_map(logits, features)
    assert ((found / (1 + 3 * features[:, :1])).log().abs()).mean() < 0.06


def test_knots_are_quantiles_and_stay_once_they_matter():
    logits, features, target = data()
    calibrator = fresh()
    fit(calibrator, batches(logits, features, target))
    knots = calibrator.knots.clone()
    assert bool((knots.diff() > 0).all())
    for row, values in zip(knots.numpy(), features.movedim(1, 0).flatten(1).numpy(), strict=True):
        np.testing.assert_allclose(row, np.quantile(values, [0, 1 / 3, 2 / 3, 1]), atol=0.06)
    fit(calibrator, batches(logits, features / 2, target))
    assert torch.equal(calibrator.knots, knots)


def test_batches_lists_of_voxels_and_kept_voxels_are_the_same_data():
    logits, features, target = data()
    flat = [values.movedim(1, -1).flatten(0, -2) for values in (logits, features)]
    kept = KeptWalk(fresh())  # the second of its fits takes voxels from memory
    objectives = [
        fit(fresh(), batches(logits, features, target)).objective,
        fit(fresh(), [(flat[0], target.flatten(), None, flat[1])]).objective,
        fit(fresh(), [{"logits": logits, "target": target, "features": features}]).objective,
        *(NewtonSolver(fresh(), walk=kept).solve(batches(logits, features, target)).objective for _ in range(2)),
    ]
    assert max(objectives) - min(objectives) < 1e-7


def test_ignored_voxels_count_nowhere():
    logits, features, target = data()
    alone = fit(fresh(), batches(logits, features, target)[:1]).objective
    target[1] = 9
    assert fit(fresh(), batches(logits, features, target), ignore_index=9).objective == pytest.approx(alone, abs=1e-9)


def test_adam_comes_near():
    logits, features, target = data()
    exact, stepped = fresh(), fresh()
    best = fit(exact, batches(logits, features, target)).nll
    fit(stepped, batches(logits, features, target), solver="adam", lr=0.05, max_epochs=60)
    with torch.no_grad():
        nll = float(torch.nn.functional.nll_loss(stepped(logits, features), target))
    assert nll == pytest.approx(best, abs=0.01)  # knots of its own


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("fts", 3)(torch.zeros(1, 3, 4, 4)), "fts looks at the features entropy, .* call it with logits"),
        (
            lambda: fresh()(torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)),
            r"expected the shape \(1, 2, 4\), got \(1, 3, 4\)",
        ),
        (lambda: build("fts", 3, feature_names=["doubt"]), "unknown features doubt; there are entropy"),
        (lambda: build("fts", 3, num_knots=1), "num_knots must be at least 2, got 1"),
        (lambda: build("case_ts", 3, ridge=-1), "ridge must be a finite number of at least 0, got -1"),
        (lambda: fit(fresh(), *data()[::2]), "looks at the features entropy, votes"),
    ],
)
def test_what_is_missing_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
