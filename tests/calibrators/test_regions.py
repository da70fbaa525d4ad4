"""Calibrators of regions: decisions, nestedness, the form of the map, and its optimum."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lightning_calib.calibrators import Identity, RegionCalibrator, build
from lightning_calib.functional.regions import two_classes
from lightning_calib.solvers import fit
from tests.calibrators.helpers import KINDS, hard_logits, input_dtypes, randomized, seeds

LABELS = [[1, 2, 3], [2, 3], [3]]


@given(seeds, st.sampled_from(KINDS), input_dtypes, st.sampled_from(["cms_op", "ts", "ets"]))
def test_decisions_stay_to_the_tie_and_nested_ones_nested(seed, kind, dtype, name):
    logits = hard_logits(seed, kind, 3, dtype)
    calibrator = RegionCalibrator([randomized(name, 2, seed + n) for n in range(3)], LABELS)
    assert calibrator.preserves_decisions
    with torch.no_grad():
        found = calibrator(logits)
        probs = calibrator.probs(found)
    assert torch.equal(found > 0, logits > 0)
    assert torch.equal(probs > 0.5, logits > 0)
    inside = logits > 0
    for small, large in ((1, 0), (2, 0), (2, 1)):
        agree = ~(inside[:, small] & ~inside[:, large])
        assert (found[:, small] <= found[:, large])[agree].all()
        assert (probs[:, small] <= probs[:, large])[agree].all()


def test_it_starts_at_the_identity_where_regions_are_nested():
    logits = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)).cummin(dim=1).values
    found = RegionCalibrator.build("cms_op", dict(zip("abc", LABELS, strict=True)))(logits)
    torch.testing.assert_close(found, logits)


def test_cms_op_of_two_classes_scales_and_shifts_each_side():
    calibrator = randomized("cms_op", 2, seed=3)
    assert calibrator.num_identifiable == 4
    z = torch.tensor([-3.0, -1.0, -0.5, 0.5, 1.0, 3.0])
    with torch.no_grad():
        found = RegionCalibrator([calibrator], [[1]])(z[:, None])[:, 0]
        slopes = (found[1:] - found[:-1]) / (z[1:] - z[:-1])
        gaps = [calibrator.non_negative(calibrator.get_parameter(name))[:, 0] for name in ("inner", "bias_gaps")]
    a, b = gaps[0].flatten(), gaps[1].flatten()  # of the experts outside and inside
    torch.testing.assert_close(slopes[[0, 1]], a[0].expand(2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slopes[[3, 4]], a[1].expand(2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[[1, 4]], torch.stack([-a[0] - b[0], a[1] + b[1]]), rtol=1e-4, atol=1e-5)


def test_newton_finds_the_optimum_of_scipy():
    generator = torch.Generator().manual_seed(0)
    z = 4 * torch.randn(4000, generator=generator, dtype=torch.float64)
    truth = torch.where(z > 0, 0.4 * z + 0.3, 0.8 * z - 0.1).sigmoid()
    inside = torch.rand(4000, generator=generator, dtype=torch.float64) < truth
    calibrator = build("cms_op", 2).double()
    fit(calibrator, two_classes(z, dim=1), inside.long(), lam=0.0, mu=0.0)

    def objective(theta):  # a and b inside, a and b outside
        x, y = z.numpy(), inside.numpy()
        odds = np.where(x > 0, theta[0] * np.maximum(x, 0) + theta[1], -theta[2] * np.maximum(-x, 0) - theta[3])
        return np.logaddexp(0, np.where(y, -odds, odds)).mean()

    best = minimize(objective, [1.0, 0.0, 1.0, 0.0], bounds=[(0, None)] * 4, tol=1e-12)
    with torch.no_grad():
        odds = RegionCalibrator([calibrator], [[1]])(z[:, None])[:, 0]
    found = torch.nn.functional.binary_cross_entropy_with_logits(odds, inside.double()).item()
    assert found == pytest.approx(best.fun, abs=1e-6)


class Looking(Identity):
    """Looks at more than a voxel's own scores."""

    looks_at = "features"


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="looks at features"):
        RegionCalibrator([Looking(2)], [[1]])
    with pytest.raises(ValueError, match="1 calibrators for 2 regions"):
        RegionCalibrator([build("ts", 2)], [[1], [2]])
    with pytest.raises(ValueError, match=r"expected log-odds \(B, 2, \*S\)"):
        RegionCalibrator.build("ts", {"a": [1], "b": [2]})(torch.zeros(1, 3, 4))
