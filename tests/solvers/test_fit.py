"""The call that most users make, and what it refuses."""

import pytest
import torch

from lightning_calib.calibrators import CALIBRATORS, AffineCalibrator, MatrixScaling, build
from lightning_calib.solvers import ConvergenceError, NewtonSolver, fit
from lightning_calib.solvers.coordinates import Coordinates
from tests.features import features_like, fed
from tests.solvers.synthetic import confused, draw, fresh, images


@pytest.mark.parametrize("name", sorted(set(CALIBRATORS) - {"stack"}))
def test_every_calibrator_can_be_fitted(name):
    logits, target = confused(num_classes=3, count=2, size=24, dtype=torch.float32)
    calibrator = fed(build(name, 3))
    options = {"max_epochs": 5} if name.startswith("lts") else {}
    batch = {"logits": logits, "target": target, "features": features_like(logits, len(calibrator.feature_names))}
    certificate = fit(calibrator, [batch], **options)
    log_probs = calibrator(logits).detach()
    nll = float(torch.nn.functional.nll_loss(log_probs, target))
    assert certificate.nll == pytest.approx(nll, abs=1e-5)
    assert nll <= float(torch.nn.functional.nll_loss(logits.log_softmax(1), target)) + 1e-7
    if calibrator.preserves:
        assert torch.equal(log_probs.argmax(1), logits.argmax(1))


def test_tensors_voxels_batches_and_mappings_are_the_same_data():
    logits, target = confused(num_classes=3, count=2, size=24)
    voxels, labels = logits.movedim(1, -1).flatten(0, 2), target.flatten()
    forms = [
        (logits, target),
        (voxels, labels),
        ([(logits[:1], target[:1]), (logits[1:], target[1:])],),
        ([{"logits": logits[k : k + 1], "target": target[k : k + 1], "case_id": [str(k)]} for k in range(2)],),
    ]
    objectives = [fit(fresh("ms", 3), *form).objective for form in forms]
    assert max(objectives) - min(objectives) < 1e-9


def test_ignored_voxels_count_nowhere():
    logits, target = confused(num_classes=3, count=2, size=24)
    kept = fit(fresh("cms_ap", 3), logits[:1], target[:1])
    poisoned = target.clone()
    poisoned[1] = 255
    with_ignored = fit(fresh("cms_ap", 3), logits, poisoned, ignore_index=255)
    assert with_ignored.objective == pytest.approx(kept.objective, abs=1e-9)
    assert with_ignored.num_voxels == kept.num_voxels == 24 * 24


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 5)])
def test_any_number_of_spatial_axes(shape):
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    target = torch.arange(logits[:, 0].numel()).view(logits[:, 0].shape) % 3
    certificate = fit(build("ts", 3), logits, target, min_voxels=0)
    assert certificate.num_voxels == target.numel()


def test_temperature_stays_within_bounds_on_separable_data():
    logits = images(num_classes=3, dtype=torch.float32)
    calibrator = build("ts", 3)
    fit(calibrator, logits, logits.argmax(1))
    assert 1e-3 * 0.999 <= calibrator.temperature.item() < 0.3


def test_ets_finds_the_mixture():
    logits = images(num_classes=4, count=4, size=96)
    truth = fresh("ets")
    with torch.no_grad():
        truth.log_temperature.fill_(0.7)
        truth.weights.copy_(torch.tensor([0.6, 0.0, 0.4]))
        target = draw(truth(logits), 1)
    calibrator = fresh("ets")
    certificate = fit(calibrator, logits, target)
    assert certificate.converged
    assert certificate.gradient_norm < 1e-3
    ends = torch.stack([torch.nn.functional.nll_loss(c(logits), target) for c in (calibrator, truth)]).detach()
    assert ends[0] <= ends[1]
    assert (calibrator(logits).exp() - truth(logits).exp()).abs().mean() < 0.01
    assert certificate.objective < fit(fresh("ts"), logits, target).objective - 1e-3


def test_ets_gradient_is_that_of_the_calibrator():
    from lightning_calib.solvers.mixture import DataObjective

    logits, target = confused(num_classes=3, count=1, size=16)
    calibrator = fresh("ets", 3)
    with torch.no_grad():
        calibrator.log_temperature.fill_(0.3)
        calibrator.weights.copy_(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    torch.nn.functional.nll_loss(calibrator(logits), target).backward()
    point = torch.cat([calibrator.log_temperature.detach().view(1), calibrator.weights.detach()])
    objective = DataObjective(3, [(logits, target, None)], None)
    value, gradient = objective(point.numpy())
    assert value == pytest.approx(float(torch.nn.functional.nll_loss(calibrator(logits), target).detach()))
    assert gradient[0] == pytest.approx(float(calibrator.log_temperature.grad), abs=1e-9)
    assert gradient[1:] == pytest.approx(calibrator.weights.grad.numpy(), abs=1e-9)


def test_ets_begins_where_its_sample_ends():
    """The descent from both starts costs no passes over the data: it took 44 of them here."""
    logits = images(num_classes=4, count=4, size=96)
    target = draw((0.9 * (logits / 2).softmax(1) + 0.1 / 4).log(), 1)
    calibrator = fresh("ets")
    certificate = fit(calibrator, logits, target)
    assert certificate.passes <= 25
    assert certificate.gradient_norm < 1e-4
    assert float(calibrator.weights.detach()[2]) == pytest.approx(0.1, abs=0.02)


def test_ets_survives_voxels_that_are_surely_wrong():
    """There the slope of a weight at 0 is astronomic, and a point off the simplex looks better than it is."""
    logits = 12 * images(num_classes=4, count=2, size=48)
    target = draw(images(num_classes=4, count=2, size=48).log_softmax(1), 1)
    calibrator, scaling = fresh("ets"), fresh("ts")
    certificate = fit(calibrator, logits, target)
    own = float(torch.nn.functional.nll_loss(calibrator(logits), target).detach())
    assert certificate.objective == pytest.approx(own, abs=1e-9)
    assert float(calibrator.weights.detach().sum()) == pytest.approx(1, abs=1e-12)
    assert own <= fit(scaling, logits, target).nll + 1e-9


def test_lts_learns_where_the_logits_are_overconfident():
    logits = images(num_classes=3, count=2, size=32, dtype=torch.float32, offsets=0.0)
    logits[..., 16:] *= 4
    target = draw((logits / torch.where(torch.arange(32) < 16, 1.0, 4.0)).log_softmax(1), 5)
    calibrator = build("lts_ti", 3)
    certificate = fit(calibrator, logits, target)
    temperature = calibrator.temperature_map(logits).detach()
    assert temperature[..., 20:].mean() > 1.5 * temperature[..., :12].mean()
    assert certificate.nll < fit(build("ts", 3), logits, target).nll - 0.005


def test_adam_ends_no_worse_than_it_began():
    logits, target = confused(num_classes=3, count=1, size=16)
    certificate = fit(fresh("ms", 3), logits, target, solver="adam", lr=50.0, max_epochs=8)
    assert certificate.objective <= certificate.identity_objective


def bad(logits=None, target=None, name="ms", **options):
    good_logits, good_target = confused(num_classes=3, count=2, size=16)
    return fit(
        build(name, 3), good_logits if logits is None else logits, good_target if target is None else target, **options
    )


def test_bad_input_is_refused_with_the_reason():
    logits, target = confused(num_classes=3, count=2, size=16)
    wrong = target.clone()
    wrong[1, 3, 3] = 7
    with pytest.raises(ValueError, match=r"case '1'.*labels from 0 to 7.*ignore_index"):
        bad(target=wrong)
    with pytest.raises(ValueError, match="no valid voxels"):
        bad(target=torch.full_like(target, 255), ignore_index=255)
    broken = logits.clone()
    broken[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="finite, got nan"):
        bad(logits=broken)
    with pytest.raises(ValueError, match="expected floating-point logits"):
        bad(logits=torch.randn(2, 5, 16, 16))
    with pytest.raises(ValueError, match="target must hold integer labels of the shape"):
        bad(target=target[:, :5])
    with pytest.raises(ValueError, match="lam must be a finite number"):
        bad(lam=-1.0)
    for solver in ("newton", "adam"):
        with pytest.raises(ValueError, match="'mean' or their 'sum', got reduction='median'"):
            bad(reduction="median", solver=solver)
    with pytest.raises(ValueError, match="slsqp cannot fit ms"):
        bad(solver="slsqp")
    with pytest.raises(TypeError, match="can be read once"):
        fit(build("ts", 3), (pair for pair in [(logits, target)]))
    with pytest.raises(TypeError, match="batches without a target"):
        fit(build("ts", 3), logits)
    with pytest.raises(ValueError, match="parametrization='clamp'"):
        fit(build("cms_op", 3, parametrization="softplus"), logits, target)


def test_budget_that_ends_early_raises_with_its_certificate():
    with pytest.raises(ConvergenceError, match="max_passes") as caught:
        bad(max_passes=1)
    certificate = caught.value.certificate
    assert not certificate.converged
    assert certificate.passes == 1
    assert certificate.objective <= certificate.identity_objective


def test_few_voxels_keep_the_identity():
    logits, target = confused(num_classes=3, count=1, size=24)
    logits[:, 2] -= 20
    logits[0, 2, 0, :5] += 100
    calibrator = fresh("cms_ap", 3)
    with pytest.warns(UserWarning, match="experts \\[2\\] have fewer than 30 voxels"):
        certificate = fit(calibrator, logits, target)
    assert certificate.identity_experts == [2]
    assert certificate.expert_voxels[2] == 5
    first = logits[..., 0, :5]
    assert torch.allclose(calibrator(first), first.log_softmax(1))


def test_constant_region_is_reported():
    logits, target = confused(num_classes=3, count=1, size=24)
    logits[..., :10] = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1)
    with pytest.warns(UserWarning, match=r"3\d\.\d% of the voxels repeat"):
        fit(fresh("ts", 3), logits, target)


def test_a_finished_solver_takes_no_more():
    logits, target = confused(num_classes=3, count=1, size=16)
    solver = NewtonSolver(fresh("ts", 3))
    while not solver.done:
        solver.accumulate(logits, target)
        solver.end_pass()
    with pytest.raises(RuntimeError, match="has ended"):
        solver.accumulate(logits, target)


class SharedBias(AffineCalibrator):
    """A matrix without a bias of its own: nobody said in which coordinates it is convex."""

    def __init__(self, num_classes: int, spatial_dims: int = 2) -> None:
        super().__init__(num_classes, spatial_dims)
        self.matrix = torch.nn.Parameter(torch.eye(num_classes))

    def assemble(self):
        return self.matrix.unsqueeze(0), self.matrix.new_zeros(1, self.num_classes)


class MatrixOnly(Coordinates):
    """The matrix without a bias."""

    def identity(self):
        return torch.eye(self.num_classes, dtype=torch.float64).flatten()

    def read(self):
        return self.calibrator.matrix.detach().double().flatten()[None]

    def write(self, theta):
        self._store(matrix=theta)

    def affine(self, theta):
        weight = theta.unflatten(-1, (self.num_classes, self.num_classes))
        return torch.cat([weight, torch.zeros_like(weight[..., :1])], dim=-1)

    def pullback(self, gradient):
        return gradient[..., :-1].flatten(-2)


class Solvable(SharedBias):
    """The same with coordinates of its own."""

    coordinates = f"{__name__}:MatrixOnly"


class Mine(MatrixScaling):
    """Matrix scaling under another name."""


def test_an_affine_calibrator_without_coordinates_is_fitted_by_adam():
    logits, target = confused(num_classes=3, count=2, size=24, dtype=torch.float32)
    certificate = fit(SharedBias(3), logits, target, max_epochs=20)
    assert (SharedBias.solver, certificate.solver) == ("adam", "adam")
    assert certificate.nll < float(torch.nn.functional.nll_loss(logits.log_softmax(1), target))
    with pytest.raises(ValueError, match=r"newton cannot fit .*SharedBias, which names no coordinates; use 'adam'"):
        fit(SharedBias(3), logits, target, solver="newton")


def test_a_calibrator_brings_its_own_coordinates():
    logits, target = confused(num_classes=3, count=2, size=24)
    certificate = fit(Solvable(3).double(), logits, target)
    assert (Solvable.solver, certificate.solver, certificate.converged) == ("newton", "newton", True)
    by_adam = fit(SharedBias(3).double(), logits, target, max_epochs=100)
    assert certificate.nll == pytest.approx(by_adam.nll, abs=1e-3)


def test_coordinates_are_inherited():
    logits, target = confused(num_classes=3, count=2, size=24)
    mine, ours = Mine(3).double(), fresh("ms", 3)
    assert fit(mine, logits, target).objective == fit(ours, logits, target).objective
    assert torch.equal(mine.weight, ours.weight)


def test_a_solver_of_ones_own_choice_is_inherited_too():
    first = type("First", (MatrixScaling,), {"solver": "adam"})
    assert [kind.solver for kind in (first, type("Second", (first,), {}))] == ["adam", "adam"]
    assert type("Third", (MatrixScaling,), {"coordinates": None}).solver == "adam"
