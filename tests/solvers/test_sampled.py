"""Local temperatures by L-BFGS on samples: gradients, unbiased samples, independence of batches, resuming."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad

from lightning_calib.calibrators import build
from lightning_calib.functional.features import make_features
from lightning_calib.solvers import ALONE, SampledSolver, fit, make_solver, mean_nll
from lightning_calib.solvers.sample import Sample
from lightning_calib.solvers.sample_model import FieldModel
from lightning_calib.solvers.sampled import FIRST_VOXELS, redrawn

IGNORED = 9


def scenes(count=4, classes=3, shape=(24, 20), seed=0, dtype=torch.float32):
    """Smooth scores with labels that are less certain where class 0 is near, and some ignored voxels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, *shape, generator=generator, dtype=torch.float64)
    for axis in range(2, logits.ndim):
        logits = (logits + logits.roll(1, axis) + logits.roll(2, axis)) / 1.5
    near = (logits[:, :1] - logits[:, 1:2]).roll(2, -1) + (logits[:, :1] - logits[:, 1:2]).roll(-2, -1)
    flat = torch.where(near > 0, 6.0, 1.0)
    noise = -torch.empty_like(logits).exponential_(generator=generator).log()
    target = (3 * logits / flat + noise).argmax(1)
    target[:, -1] = IGNORED
    return (3 * logits).to(dtype), target


def batches(logits, target, size=1):
    names = [f"case{number}" for number in range(len(logits))]
    return [(logits[k : k + size], target[k : k + size], names[k : k + size]) for k in range(0, len(logits), size)]


def fresh(name="lts_ti", classes=3, dims=2, dtype=torch.float32, **options):
    torch.manual_seed(0)
    return build(name, classes, dims, **options).to(dtype)


def drawn(solver, data):
    """The sample of a solver's pass, and the number of voxels that it stands for."""
    for batch in data:
        solver.accumulate(*batch)
    return solver._sample(solver.sampler.finish(ALONE)), solver.voxels


def take_epoch(solver, data, val):
    for batch in data:
        solver.accumulate(*batch)
    solver.move()
    solver.end_pass(mean_nll(solver.calibrator, val, IGNORED)[0])


@pytest.mark.parametrize("name", ["lts", "lts_ti"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_gradients_against_finite_differences(name, decay):
    logits, target = scenes(2, dtype=torch.float64)
    calibrator = fresh(name, dtype=torch.float64)
    solver = SampledSolver(calibrator, IGNORED, sample_size=150)
    sample, voxels = drawn(solver, batches(logits, target))
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    model = FieldModel(calibrator, sample, voxels, decay)
    point = model._standardized(model._read()).numpy()
    value, gradient = model(point)
    assert check_grad(lambda x: model(x)[0], lambda x: model(x)[1], point) < 1e-5 * np.linalg.norm(gradient)
    model._write(model._standardized(torch.from_numpy(point), back=True))
    plain = decay / 2 * float(model._read().square().sum())
    rows = sample.features.T
    temperature = calibrator.temperature_at(rows[:, 3:]).detach().unsqueeze(1)
    assert value == pytest.approx(float(model.nll(temperature)) + plain, rel=1e-12)


def test_gradients_of_feature_networks_against_finite_differences():
    logits, target = scenes(2, dtype=torch.float64)
    calibrator = fresh("fts_net", dtype=torch.float64, feature_names=["gap", "rival_3"], num_hidden=4)
    features = make_features(calibrator.feature_names, logits)
    solver = SampledSolver(calibrator, IGNORED, sample_size=150)
    sample, voxels = drawn(solver, [(logits, target, ["a", "b"], features)])
    with torch.no_grad():
        calibrator.out.weight.normal_(generator=torch.Generator().manual_seed(1))
    model = FieldModel(calibrator, sample, voxels, 0.1)
    point = model._standardized(model._read()).numpy()
    gradient = model(point)[1]
    assert check_grad(lambda x: model(x)[0], lambda x: model(x)[1], point) < 1e-5 * np.linalg.norm(gradient)


def test_feature_networks_learn_from_images_and_from_lists_of_voxels():
    calibrator, other = fresh("fts_net"), fresh("fts_net")
    (logits, target), names = scenes(12, shape=(32, 32)), calibrator.feature_names
    features = make_features(names, logits)
    data = [(logits, target, [f"case{number}" for number in range(len(logits))], features)]
    certificate = fit(calibrator, data, ignore_index=IGNORED, max_epochs=5)
    assert certificate.nll < fit(build("ts", 3), data, ignore_index=IGNORED).nll - 0.01
    flat = [values.movedim(1, -1).flatten(0, -2) for values in (logits, features)]
    again = fit(other, [(flat[0], target.flatten(), None, flat[1])], ignore_index=IGNORED, max_epochs=5)
    assert again.nll == pytest.approx(certificate.nll, abs=2e-3)  # other names, other samples


@pytest.mark.parametrize(("dims", "shape"), [(2, (24, 20)), (3, (5, 7, 6))])
def test_a_sample_of_all_voxels_has_their_nll(dims, shape):
    logits, target = scenes(3, shape=shape)
    calibrator = fresh(dims=dims)
    with torch.no_grad():
        calibrator.convolutions.weight.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    data = batches(logits, target)
    sample, voxels = drawn(SampledSolver(calibrator, IGNORED), data)
    nll, count = mean_nll(calibrator, data, IGNORED)
    assert (voxels, len(sample.weight), set(sample.weight.tolist())) == (count, count, {1.0})
    model = FieldModel(calibrator, sample, voxels, 0.0)
    inputs = sample.features[3:].T
    found = model.nll(calibrator.temperature_at(inputs).unsqueeze(1))
    assert float(found.detach()) == pytest.approx(nll, abs=1e-6)


@settings(max_examples=5)
@given(seed=st.integers(0, 99))
def test_sums_over_samples_are_unbiased(seed):
    logits, target = scenes(2, shape=(16, 16), seed=seed)
    data = batches(logits, target)
    kept = target != IGNORED
    exact = torch.stack([kept.sum().double(), logits.softmax(1)[:, 0][kept].double().sum()])
    found = []
    for epoch in range(60):
        solver = SampledSolver(fresh(), IGNORED, sample_size=60)
        solver.epoch = epoch * solver.served + epoch % solver.served  # another draw, another part of it
        sample, voxels = drawn(solver, data)
        assert voxels == int(kept.sum())
        assert len(sample.weight) <= 60
        probs = sample.features[:3].softmax(0)[0].double()
        found.append(torch.stack([sample.weight.sum(), (sample.weight * probs).sum()]))
    mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / 60**0.5
    assert ((mean - exact).abs() <= 4.5 * error + 1e-9 * exact).all()


class Counted(list):
    """Batches that know how often they were read."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize(("size", "readings"), [(300, 1), (100_000, 2)])
def test_one_reading_serves_the_passes_whose_samples_it_holds(size, readings):
    logits, target = scenes()
    data = Counted(batches(logits, target))
    solver = SampledSolver(fresh(), IGNORED, sample_size=size, epochs=4, steps=2)
    assert solver.served == (8 if size == 300 else 2)  # 79 numbers a voxel, 2^24 in all
    solver.solve(data)
    assert data.times == readings


@settings(max_examples=10)
@given(seed=st.integers(0, 999), count=st.integers(20, 200), size=st.integers(8, 30))
def test_a_sample_of_a_draw_is_one_of_all_voxels(seed, count, size):
    generator = torch.Generator().manual_seed(seed)
    often, value = torch.rand(2, count, generator=generator, dtype=torch.float64) + 0.01
    chance = (5 * often).clamp(max=1)  # of having been drawn
    drawn = Sample(torch.stack([value, often]), torch.arange(count), 1 / chance)
    one = redrawn(drawn, size, seed)
    assert len(set(one.position.tolist())) == len(one.weight) == min(size, count)
    assert one.features.shape == (1, len(one.weight))
    rare = one.weight * chance[one.position] > 1 + 1e-9  # those that the second draw might have left out
    product = (one.weight * often[one.position])[rare]
    assert (product - product.mean()).abs().max() < 1e-6 * product.mean() if rare.any() else count <= size
    sums = []
    for each in range(200):
        part = redrawn(drawn, size, each)
        sums.append(torch.stack([part.weight.sum(), (part.weight * part.features[0]).sum()]))
    exact = torch.stack([drawn.weight.sum(), (drawn.weight * value).sum()])
    error = torch.stack(sums).std(0) / 200**0.5
    assert ((torch.stack(sums).mean(0) - exact).abs() <= 5 * error + 1e-9 * exact).all()


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_batches_and_their_order_do_not_matter(order, size):
    logits, target = scenes()
    states = []
    for data in (batches(logits, target), batches(logits, target, size)[::order]):
        calibrator = fresh()
        SampledSolver(calibrator, IGNORED, sample_size=300, epochs=2, steps=5).solve(data)
        states.append(calibrator.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])


def test_ignored_labels_are_never_read():
    logits, target = scenes()
    states = []
    for label in (IGNORED, 200):
        calibrator = fresh()
        changed = target.where(target != IGNORED, label)
        SampledSolver(calibrator, label, epochs=2, steps=5).solve(batches(logits, changed))
        states.append(calibrator.convolutions.weight.detach())
    assert torch.equal(*states)


FITS = [("lts", 2, (48, 40)), ("lts_ti", 2, (48, 40)), ("lts_ti", 3, (8, 16, 16))]


@pytest.mark.parametrize(("name", "dims", "shape"), FITS)
def test_it_learns_more_than_a_temperature(name, dims, shape):
    data, val = batches(*scenes(12, shape=shape)), batches(*scenes(4, shape=shape, seed=1))
    calibrator, scaling = fresh(name, dims=dims), build("ts", 3, dims)
    solver = make_solver(calibrator, ignore_index=IGNORED, weight_decay=1e-2)
    certificate = solver.solve(data, val)
    assert (certificate.solver, certificate.converged) == ("lbfgs", True)
    assert solver.best_nll == pytest.approx(mean_nll(calibrator, val, IGNORED)[0], abs=1e-9)
    fit(scaling, data, ignore_index=IGNORED)
    assert solver.best_nll < mean_nll(scaling, val, IGNORED)[0] - 0.005


def test_the_first_pass_starts_at_the_best_single_temperature(monkeypatch):
    monkeypatch.setattr(FieldModel, "descend", lambda *_: 0.0)
    logits, target = scenes()
    data = batches(logits, target)
    calibrator, scaling = fresh(), build("ts", 3)
    fit(scaling, data, ignore_index=IGNORED)
    SampledSolver(calibrator, IGNORED, epochs=1).solve(data)
    found = calibrator.temperature_map(logits).detach()
    assert float(found.max() - found.min()) < 1e-6
    assert float(found.mean()) == pytest.approx(float(scaling.temperature.detach()), rel=2e-3)


def test_a_warm_start_is_kept(monkeypatch):
    monkeypatch.setattr(FieldModel, "descend", lambda *_: 0.0)
    logits, target = scenes()
    calibrator = fresh()
    with torch.no_grad():
        calibrator.convolutions.weight.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    before = calibrator.convolutions.weight.detach().clone()
    SampledSolver(calibrator, IGNORED, epochs=1).solve(batches(logits, target))
    assert torch.equal(calibrator.convolutions.weight.detach(), before)
    assert not calibrator.convolutions.bias.detach().any()


def test_the_identity_wins_where_nothing_is_better():
    logits, target = scenes()
    wrong = [(logits, (target + 1) % 3, ["a"])]
    calibrator = fresh()
    solver = SampledSolver(calibrator, patience=2)
    certificate = solver.solve(wrong, [(logits, logits.argmax(1), ["b"])])
    assert certificate.converged
    assert torch.equal(calibrator(logits), build("identity", 3)(logits))


def test_a_fit_that_was_interrupted_ends_with_the_same_bits():
    logits, target = scenes()
    data, val = batches(logits, target), batches(*scenes(2, seed=1))
    whole, begun, resumed = (SampledSolver(fresh(), IGNORED, sample_size=300, max_epochs=4) for _ in range(3))
    whole.solve(data, val)
    begun.judge_identity(mean_nll(build("identity", 3), val, IGNORED)[0])
    for _ in range(2):
        take_epoch(begun, data, val)
    resumed.calibrator.load_state_dict(begun.calibrator.state_dict())
    resumed.load_state_dict(begun.state_dict())
    while not resumed.done:
        take_epoch(resumed, data, val)
    assert resumed.history == whole.history
    assert torch.equal(resumed.calibrator.convolutions.weight, whole.calibrator.convolutions.weight)


def test_samples_grow_from_pass_to_pass():
    solver = SampledSolver(fresh())
    sizes = []
    for epoch in range(5):
        solver.epoch = epoch
        sizes.append(solver._size())
    assert sizes == [FIRST_VOXELS, 2 * FIRST_VOXELS, 4 * FIRST_VOXELS, 4 * FIRST_VOXELS, 4 * FIRST_VOXELS]
    assert SampledSolver(build("fts_net", 3)).sample_size == 256 * build("fts_net", 3).num_optimized
    assert SampledSolver(build("lts", 118))._size() * (26 * 118) <= 2**24


def test_bad_use_is_refused():
    with pytest.raises(ValueError, match="lbfgs cannot fit ms"):
        make_solver(build("ms", 3), "lbfgs")
    nothing = [(torch.randn(1, 3, 4, 4), torch.full((1, 4, 4), IGNORED), ["a"])]
    with pytest.raises(ValueError, match="no valid voxels to fit on"):
        SampledSolver(fresh(), IGNORED, epochs=1).solve(nothing)
    with pytest.raises(ValueError, match="lts_ti looks at neighbours: give images"):
        SampledSolver(fresh(), epochs=1).solve([(torch.randn(20, 3), torch.zeros(20, dtype=torch.long), None)])
    with pytest.raises(ValueError, match="weight_decay = -1"):
        SampledSolver(fresh(), weight_decay=-1.0)
