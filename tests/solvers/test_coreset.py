"""Coresets: sums without bias, the same however the data come, all voxels where they fit, the right optimum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.solvers import ALONE, NewtonSolver, fit, mean_nll
from lightning_calib.solvers.coordinates import Coordinates, coordinates_of
from lightning_calib.solvers.coreset import _share, draw, look
from lightning_calib.solvers.stream import KeptWalk, Walk
from lightning_calib.solvers.survey import Survey
from lightning_calib.solvers.weights import CaseWeights
from tests.references.fitting import Problem, parameters_of
from tests.solvers.synthetic import confused, fresh

CLASSES, IGNORED = 4, 9


def cases(names="abcd", size=40, seed=0):
    """Cases of float32 voxels, some ignored, with a cell of three voxels only."""
    logits, target = confused(CLASSES, len(names), size, seed, torch.float32)
    target[0, :5] = IGNORED
    winner = logits.argmax(1)
    target[(winner == 3) & (target == 0)] = 3
    first = (winner[1] == 3).nonzero()[:3]
    target[1][tuple(first.T)] = 0
    return [(logits[k : k + 1], target[k : k + 1], [name]) for k, name in enumerate(names)]


def rows(coreset):
    """Its voxels in one order."""
    table = torch.cat([coreset.logits.double(), coreset.target[None].double(), coreset.weight[None]])
    return table[:, table[0].argsort()]


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(4)), st.sampled_from([200, 1000]))
def test_order_and_batches_change_nothing(order, size):
    parts = cases()
    shuffled = [parts[k] for k in order]
    both = tuple(torch.cat([part[i] for part in shuffled[:2]]) for i in (0, 1))
    batches = [(*both, [name for part in shuffled[:2] for name in part[2]]), *shuffled[2:]]
    assert torch.equal(rows(draw(parts, CLASSES, IGNORED, size)), rows(draw(batches, CLASSES, IGNORED, size)))


def test_small_data_are_kept_whole():
    parts = cases()
    coreset = draw(parts, CLASSES, IGNORED, 10_000)
    assert (coreset.weight == 1).all()
    kept = torch.cat([part[0][0].flatten(1)[:, part[1].flatten() != IGNORED] for part in parts], 1)
    assert torch.equal(coreset.logits[:, coreset.logits[0].argsort()], kept[:, kept[0].argsort()])


def test_sums_are_unbiased_and_rare_cells_are_there():
    parts, truth, found = cases(), None, []
    calibrator = fresh("ms", CLASSES, torch.float32)
    with torch.no_grad():
        calibrator.weight.add_(0.1 * torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(0)))
    for number in range(40):
        renamed = [(logits, target, [f"{name[0]}{number}"]) for logits, target, name in parts]
        coreset = draw(renamed, CLASSES, IGNORED, 600)
        assert len(coreset.weight) <= 600
        winner = coreset.logits.argmax(0)
        assert ((winner == 3) & (coreset.target == 0)).sum() == 3
        nll, slope = coreset.sums(calibrator, Walk(calibrator))
        found.append(torch.cat([torch.tensor([1.0, nll]), slope.flatten()]) * coreset.weight.sum())
    whole = draw(parts, CLASSES, IGNORED, 10_000)
    nll, slope = whole.sums(calibrator, Walk(calibrator))
    truth = torch.cat([torch.tensor([1.0, nll]), slope.flatten()]) * whole.weight.sum()
    sums = torch.stack(found)
    error = (sums.mean(0) - truth).abs() / (sums.std(0) / len(found) ** 0.5).clamp(min=1e-9)
    assert error.max() < 4.5  # standard errors, of 22 sums
    assert (sums[:, 1].std() / truth[1]) < 0.1


@pytest.mark.parametrize("name", ["ms", "dc", "ms_c", "cdc", "cms_ap", "cms_op"])
def test_with_the_tilt_the_optimum_of_all_voxels_is_that_of_the_coreset(name):
    parts, strong = cases(), {"lam": 1e-2, "mu": 1e-2}
    best = fresh(name, CLASSES, torch.float32)
    full = fit(best, parts, ignore_index=IGNORED, **strong)
    coreset = draw(parts, CLASSES, IGNORED, 1500)
    found = look(best, Walk(best, IGNORED), parts, coreset, Walk(best))
    assert found.counts.num_voxels == full.num_voxels
    assert found.counts.cells.sum(1).tolist() == full.expert_voxels
    moved = []
    for slope in (None, found.slope):
        calibrator = fresh(name, CLASSES, torch.float32)
        solver = NewtonSolver(calibrator, **strong, case_weights=coreset.case_weights, tilt=slope)
        solver.solve([coreset.batch])
        oracle = fit_value(name, calibrator, parts, strong)
        moved.append(oracle - full.objective)
    assert abs(moved[1]) < 1e-6
    assert moved[0] > 20 * abs(moved[1])


def fit_value(name, calibrator, parts, strong):
    """The objective on all voxels by numpy."""
    logits = torch.cat([part[0].movedim(1, -1).flatten(0, -2) for part in parts])
    target = torch.cat([part[1].flatten() for part in parts])
    keep = target != IGNORED
    oracle = Problem(name, logits[keep].double().numpy(), target[keep].numpy(), strong["lam"], strong["mu"], 1e-8)
    return oracle.value(parameters_of(name, calibrator))


def test_a_tilt_is_the_difference_of_slopes_by_autograd():
    parts = cases()
    calibrator = fresh("ms", CLASSES, torch.float32)
    coreset = draw(parts, CLASSES, IGNORED, 500)

    def slope(logits, target, weight):
        calibrator.zero_grad()
        loss = torch.nn.functional.nll_loss(calibrator(logits), target, reduction="none")
        ((loss * weight).sum() / weight.sum()).backward()
        return torch.cat([calibrator.weight.grad, calibrator.bias.grad[:, None]], 1).double()

    logits = torch.cat([part[0].movedim(1, -1).flatten(0, -2) for part in parts])
    target = torch.cat([part[1].flatten() for part in parts])
    every = slope(logits[target != IGNORED], target[target != IGNORED], torch.ones(int((target != IGNORED).sum())))
    some = slope(coreset.logits.T, coreset.target, coreset.weight.float())
    found = look(calibrator, Walk(calibrator, IGNORED), parts, coreset, KeptWalk(calibrator)).slope
    assert found.shape == coordinates_of(calibrator).read().shape
    assert torch.allclose(found.view_as(every), every - some, atol=1e-5)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8).filter(any), st.integers(50, 2000))
def test_shares_fill_a_coreset_and_never_overfill_it(voxels, size):
    share = _share(torch.tensor(voxels), size)
    assert sum(min(count, share) for count in voxels) <= max(size, len(voxels))
    more = sum(min(count, share + 1) for count in voxels)
    assert more > size or share >= max(voxels) or share == 2 * size // len(voxels)


def test_the_loss_that_a_coreset_lacks_is_the_difference_of_means():
    parts, calibrator = cases(), fresh("ms", CLASSES, torch.float32)
    coreset = draw(parts, CLASSES, IGNORED, 500)
    found = look(calibrator, Walk(calibrator, IGNORED), parts, coreset, Walk(calibrator))
    loss = torch.nn.functional.cross_entropy(coreset.logits.T.double(), coreset.target, reduction="none")
    some = float((loss * coreset.weight).sum() / coreset.weight.sum())
    assert found.loss == pytest.approx(mean_nll(calibrator, parts, IGNORED)[0] - some, abs=1e-6)


@pytest.mark.parametrize("name", ["ms", "cdc", "cms_op"])
def test_a_fit_that_is_told_all_voxels_ends_in_two_passes_where_others_end(name, monkeypatch):
    coreset, taken, curvature = draw(cases(), CLASSES, IGNORED, 900), [], Coordinates.curvature
    monkeypatch.setattr(
        coordinates_of(fresh(name, CLASSES)).__class__,
        "curvature",
        lambda self, *values: taken.append(1) or curvature(self, *values),
    )
    options, calibrator = {"case_weights": coreset.case_weights}, fresh(name, CLASSES, torch.float32)
    walk, coordinates = KeptWalk(calibrator), coordinates_of(calibrator)
    survey = Survey(coordinates.num_experts, CLASSES, 0, weights=CaseWeights(coreset.case_weights))
    for chunk in walk(coreset.logits[None], coreset.target[None], ["coreset"]):
        survey.add(chunk)
    counts, samples = survey.finish(ALONE)[0], coreset.samples(calibrator, walk)
    assert sum(len(sample.weight) for sample in samples) == len(coreset.weight)
    known = NewtonSolver(calibrator, **options).told(counts, samples)
    for lam in (1e-2, 1e-3):
        solver = NewtonSolver(fresh(name, CLASSES, torch.float32), lam=lam, walk=walk, known=known, **options)
        found = solver.solve([coreset.batch])
        other = fit(fresh(name, CLASSES, torch.float32), [coreset.batch], lam=lam, **options)
        assert found.passes == 2
        assert found.objective == pytest.approx(other.objective, rel=1e-6)
    twin = known.experts[0].model.under(known.experts[0].regularizer)
    taken.clear()
    again = twin.curvature(coordinates.read()[0], torch.float32)
    assert not taken  # kept from the first fit
    assert torch.equal(again, next(iter(known.experts[0].model.shared.values())))
