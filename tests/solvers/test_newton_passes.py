"""The fit does not depend on how its data arrive."""

import json
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.solvers import ALONE, NewtonSolver, fit
from lightning_calib.solvers.sample import Sample, Sampler, hashed_uniform
from lightning_calib.solvers.stream import Walk
from lightning_calib.solvers.survey import Survey
from tests.solvers.synthetic import confused, fresh

NAMES = ["ts", "ms", "cdc", "cms_op", "gs"]
CASES = [str(number) for number in range(6)]


def data(dtype=torch.float32):
    return confused(num_classes=3, count=6, size=24, dtype=dtype)


def batches(logits, target, sizes=(6,), order=range(6)):
    order = list(order)
    parts, start = [], 0
    for size in sizes:
        chosen = order[start : start + size]
        parts.append((logits[chosen], target[chosen], [CASES[k] for k in chosen]))
        start += size
    return parts


def agree(name, dtype, first, second):
    logits, _ = data(dtype)
    objectives, results = [], []
    for parts, options in (first, second):
        calibrator = fresh(name, 3, dtype)
        solver = NewtonSolver(calibrator)
        solver.walk = Walk(calibrator, **options)
        objectives.append(solver.solve(parts).nll)
        results.append(calibrator(logits).detach())
    assert abs(objectives[0] - objectives[1]) < 1e-6
    last_place = 0.0 if dtype == torch.float64 else 4e-6  # log_probs of up to 10: four units of float32
    assert (results[0] - results[1]).abs().max() < 1e-6 + last_place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_batches_order_and_chunks_change_nothing(name, dtype):
    logits, target = data(dtype)
    whole = batches(logits, target)
    agree(name, dtype, (whole, {}), (batches(logits, target, (1, 2, 3), (5, 3, 1, 0, 2, 4)), {}))
    agree(name, dtype, (whole, {}), (whole, {"chunk_values": 300}))


class Threads:
    """A collective of threads."""

    def __init__(self, rank, size, barrier, shared):
        self.rank, self.size, self.barrier, self.shared = rank, size, barrier, shared

    def all(self, tensor):
        self.shared[self.rank] = tensor.clone()
        self.barrier.wait(30)
        found = [self.shared[number] for number in range(self.size)]
        self.barrier.wait(30)
        return found

    def sum(self, values):
        return sum(self.all(values))

    def gather(self, rows):
        return torch.cat(self.all(rows))


def together(workers):
    """Run functions of a collective side by side, as processes would."""
    barrier, shared, errors = threading.Barrier(len(workers)), {}, []

    def run(rank, worker):
        try:
            worker(Threads(rank, len(workers), barrier, shared))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def feed(solver, shard, collective):
    solver.collective = collective
    solver.solve(shard)


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_give_the_result_of_one(name):
    logits, target = data(torch.float64)
    target[0, :4] = 9
    single = fresh(name, 3)
    certificate = NewtonSolver(single, ignore_index=9, sample_size=50).solve(batches(logits, target))
    pair = [fresh(name, 3), fresh(name, 3)]
    solvers = [NewtonSolver(calibrator, ignore_index=9, sample_size=50) for calibrator in pair]
    shards = [batches(logits, target, (2,)), batches(logits, target, (3, 1), range(2, 6))]

    def worker(rank):
        return lambda collective: feed(solvers[rank], shards[rank], collective)

    together([worker(0), worker(1)])
    for solver, calibrator in zip(solvers, pair, strict=True):
        assert solver.certificate.num_voxels == certificate.num_voxels == target.ne(9).sum()
        assert abs(solver.certificate.nll - certificate.nll) < 1e-6
        assert (calibrator(logits) - single(logits)).abs().max() < 1e-6
    assert torch.equal(pair[0](logits), pair[1](logits))


def test_a_process_without_data_takes_part():
    logits, target = data(torch.float64)
    solvers = [NewtonSolver(fresh("ms", 3)), NewtonSolver(fresh("ms", 3))]
    shards = [batches(logits, target), []]
    together([lambda c: feed(solvers[0], shards[0], c), lambda c: feed(solvers[1], shards[1], c)])
    assert solvers[1].certificate.objective == solvers[0].certificate.objective


@pytest.mark.parametrize("name", ["ms", "cms_ap", "gs"])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_resumes_from_a_checkpoint(name, stop, tmp_path):
    logits, target = data(torch.float64)
    parts = batches(logits, target)
    straight, resumed = fresh(name, 3), fresh(name, 3)
    few = {"sample_size": 40}  # with all voxels in its sample, a fit ends in two passes
    expected = NewtonSolver(straight, **few).solve(parts)
    first = NewtonSolver(resumed, **few)
    for _ in range(stop):
        first.accumulate(*parts[0])
        first.end_pass()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = NewtonSolver(fresh(name, 3), **few)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    certificate = second.solve(parts)
    assert certificate.passes == expected.passes
    assert certificate.objective == pytest.approx(expected.objective, abs=1e-12)
    assert torch.allclose(second.calibrator(logits), straight(logits), atol=1e-9)


def test_warm_start_needs_fewer_passes_and_ends_at_the_same_place():
    logits, target = data(torch.float64)
    calibrator = fresh("cms_op", 3)
    fit(calibrator, logits, target, lam=1e-3)
    warm = fit(calibrator, logits, target, lam=1.1e-3, sample_size=40)
    cold = fit(fresh("cms_op", 3), logits, target, lam=1.1e-3, sample_size=40)
    assert warm.passes < cold.passes
    assert warm.objective == pytest.approx(cold.objective, abs=1e-9)


@pytest.mark.parametrize("sample_size", [40, 10_000])
def test_what_is_learned_at_a_start_serves_fits_of_other_strengths(sample_size):
    logits, target = data(torch.float64)
    parts = batches(logits, target)
    start = fresh("cdc", 3)
    fit(start, logits, target)
    before = start.state_dict()["weight"].clone()
    known = NewtonSolver(start, sample_size=sample_size).learn(parts)
    assert torch.equal(start.state_dict()["weight"], before)
    assert known.passes == 0
    warm = fresh("cdc", 3)
    warm.load_state_dict(start.state_dict())
    solver = NewtonSolver(warm, lam=1e-2, known=known)
    assert solver.survey is None
    found, expected = solver.solve(parts), fit(fresh("cdc", 3), logits, target, lam=1e-2)
    assert found.objective == pytest.approx(expected.objective, abs=1e-9)
    assert found.expert_voxels == expected.expert_voxels


def test_certificate_is_json():
    logits, target = data()
    certificate = fit(fresh("cms_op", 3, torch.float32), logits, target)
    read = json.loads(certificate.to_json())
    assert read["num_voxels"] == target.numel() == sum(read["expert_voxels"])
    assert read["converged"] is True
    assert read["gradient_norm"] <= 1e-6
    assert len(read["history"]) == read["passes"]


@settings(max_examples=15)
@given(st.text(max_size=8), st.integers(0, 2**40))
def test_hashed_numbers_are_uniform_and_depend_on_place_only(case, start):
    index = torch.arange(start, start + 4000)
    numbers = hashed_uniform(case, index)
    assert torch.equal(numbers[7:9], hashed_uniform(case, index[7:9]))
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert np.abs(np.sort(numbers.numpy()) - (np.arange(4000) + 0.5) / 4000).max() < 0.05  # Kolmogorov-Smirnov


def test_sample_stands_for_all_voxels():
    logits, target = confused(num_classes=3, count=2, size=64)
    winner = logits.argmax(1).flatten(1)
    walk, shares = Walk(fresh("ms", 3), chunk_values=9999), []
    for draw in range(10):
        sampler = Sampler(3, 200)
        for chunk in walk(logits, target, [f"0-{draw}", f"1-{draw}"]):
            weight = 1.25 - chunk.logits.softmax(0).square().sum(0)
            sampler.add(chunk, winner[int(chunk.case_id[0])][chunk.index], weight)
        for number, sample in enumerate(sampler.finish(ALONE)):
            assert 170 <= len(sample.weight) <= 200
            assert (sample.features.argmax(0) == number).all()
            shares.append(float(sample.weight.sum()) / int((winner == number).sum()))
    assert abs(np.mean(shares) - 1) < 0.05  # each within 0.07
    assert np.std(shares) > 0  # drawn anew


def test_a_second_sample_takes_voxels_of_rare_classes_and_still_stands_for_all():
    logits, _ = confused(num_classes=3, count=2, size=64)
    target = logits.argmax(1)
    logits[:, 2] -= 8  # few voxels may be of the last class, and fewer are
    target[target == 2] = 0
    target[0, :2, :2] = 2
    logits[0, 2, :2, :2] = logits[0].amax(0)[:2, :2] - 0.5
    first = Survey(1, 3, 100)
    for chunk in Walk(fresh("ms", 3))(logits, target, ["0", "1"]):
        first.add(chunk)
    facts, _ = first.finish(ALONE)
    assert facts.cells[0, 2] == 4
    plain, informed, shares = 0, 0, []
    for draw in range(10):
        for known in (None, facts.cells):
            survey = Survey(1, 3, 100, known)
            for chunk in Walk(fresh("ms", 3))(logits, target, [f"0-{draw}", f"1-{draw}"]):
                survey.add(chunk)
            sample = Sample.merge(survey.finish(ALONE)[1])
            found = int((sample.position == 2).sum())
            plain, informed = plain + (known is None) * found, informed + (known is not None) * found
            if known is not None:
                shares.append(float(sample.weight.sum()) / target.numel())
    assert informed == 40  # all four, every time
    assert plain < 20
    assert abs(np.mean(shares) - 1) < 0.1


@pytest.mark.parametrize("name", ["cdc", "cms_op", "cms_ap"])
@pytest.mark.parametrize("ignored", [False, True])
def test_voxels_of_some_experts_alone_are_those_of_all(name, ignored):
    logits, target = confused(num_classes=5, count=1, size=24)
    if ignored:
        target[0, 3:9] = 7
    walk = Walk(fresh(name, 5), 7, chunk_values=700)
    every = [walk(logits, target, ["a"], only=only) for only in (None, {1, 3})]
    for expert in (1, 3):
        whole, some = (
            [
                (chunk.features[:, part], chunk.position[part], chunk.index[part])
                for chunk in found
                for part in [part for number, part in chunk.experts if number == expert]
            ]
            for found in map(list, [walk(logits, target, ["a"]), walk(logits, target, ["a"], only={1, 3})])
        )
        for mine, theirs in zip(map(list, zip(*some, strict=True)), map(list, zip(*whole, strict=True)), strict=True):
            assert torch.equal(torch.cat(mine, -1), torch.cat(theirs, -1))
    assert sum(len(chunk.target) for chunk in every[1]) < sum(len(chunk.target) for chunk in every[0])
