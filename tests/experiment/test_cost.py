"""The cost of an experiment before it is begun: lengths of jobs, time on workers, disk, memory."""

import pytest

from lightning_calib.calibrators import PAPER_PIPELINES
from lightning_calib.experiment.cost.estimate import Cost, cost_of, modelled, pending
from lightning_calib.experiment.cost.rates import CalibratorRates, Rates, measure
from lightning_calib.experiment.cost.schedule import finish_time
from lightning_calib.experiment.cost.workload import PASSES, Extent, Model
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.selection.jobs import SelectionJob
from lightning_calib.solvers.coreset import CORESET_VOXELS
from lightning_calib.solvers.stream import KEPT_BYTES
from tests.experiment.settings import run_small, small_experiment
from tests.experiment.synthetic import write_outputs

MS = CalibratorRates(
    "newton", prepare=2e-6, first=1e-6, each=3e-6, begin=3.0, step=0.5, judge=4e-6, score=5e-6, kept=100.0
)
LTS = CalibratorRates("adam", each=7e-6, judge=1e-6, score=9e-6)
RATES = Rates(
    {"identity": CalibratorRates("", judge=1e-6, score=2e-6), "ms": MS, "ts": MS, "lts": LTS},
    pooling=1e-6,
    distance=2e-6,
    fit_job=1.0,
    evaluation_job=2.0,
    start=5.0,
    memory=10**9,
)
EXTENT = Extent(3, 10**6, cal=1e6, val=2e6, test=4e6, pooled={"z": 7 * 10**6, "p0": 0}, distances=5 * 10**6)


def model(names, extent=EXTENT, **settings):
    return Model(Experiment("nowhere", names, repeats=1, **settings), extent, RATES)


def search_of(name, **options):
    made = model([name], **options)
    return made.search(made.experiment.jobs[0])


def test_a_pipeline_without_parameters_is_judged_and_written():
    assert search_of("identity(z)").seconds == pytest.approx(1.0 + 2e6 * 1e-6)


def test_a_search_by_newton_is_the_sum_of_its_passes():
    passes, around, prepare = PASSES["ms"], 1.0 + 2e6 * 1e-6, 3e6 * 2e-6

    def fit(count):
        return 1e6 * 1e-6 + count * passes.share * 3e-6 * 1e6 + 3.0 + (count - 1) * 0.5 + 4e-6 * 2e6

    piece, first, trial = search_of("ms(z)", trials=20, search="exact"), fit(passes.first), fit(passes.trial)
    assert piece.seconds == pytest.approx(prepare + around + first + 20 * trial + around + trial)
    alone = (prepare + first + trial, prepare + trial, prepare + around + trial)
    assert [len(tasks) for tasks in piece.rounds] == [10, 5, 5, 1]
    assert [tasks[0] for tasks in piece.rounds] == pytest.approx([alone[0], alone[1], alone[1], alone[2]])


def test_trials_on_a_coreset_cost_the_same_whatever_the_voxels():
    def seconds(voxels, trials, search="coreset"):
        extent = Extent(3, 10**6, voxels, voxels / 2, 0.0, {}, 0)
        return search_of("ms(z)", extent=extent, trials=trials, search=search).seconds

    trial = seconds(1e6, 20) - seconds(1e6, 10)
    assert seconds(1e8, 20) - seconds(1e8, 10) == pytest.approx(trial, rel=1e-6)
    passes = PASSES["ms"].trial
    assert trial == pytest.approx(10 * (CORESET_VOXELS * (passes * 3e-6 + 4e-6) + 3.0 + (passes - 1) * 0.5))
    assert seconds(1e8, 20, "exact") > 6 * seconds(1e8, 20)
    assert seconds(1e5, 20, "exact") == seconds(1e5, 20)


def test_voxels_beyond_the_memory_of_a_search_are_prepared_in_every_pass():
    large = Extent(3, 10**6, 2 * KEPT_BYTES / 100, 0.0, 0.0, {}, 0)
    passes, room = PASSES["ts"].first, KEPT_BYTES / 100
    rest = 1.0 + 1e-6 * large.cal + passes * 3e-6 * large.cal + 3.0 + (passes - 1) * 0.5
    assert search_of("ts(z)", extent=large).seconds == pytest.approx(2e-6 * room * (1 + passes) + rest)


def test_adam_takes_as_many_epochs_as_it_is_given_at_most():
    few, many = (search_of("lts(z)", lts_trials=2, lts_epochs=epochs).seconds for epochs in (1, 300))
    assert few == pytest.approx(2 * (1.0 + 2.0) + 3 * (7e-6 * 1e6 + 1e-6 * 2e6))
    assert 5 * few < many <= 300 * few


def test_stages_follow_each_other_and_slow_searches_come_first():
    made = model(["identity(p0)", "ts(z)", "ms(z)", "lts(z)"])
    cost = modelled(made, made.experiment.jobs, made.experiment.jobs)
    assert [piece.stage for piece in cost.pieces] == ["pooling"] * 2 + ["search"] * 4 + ["evaluation"] * 2
    assert [piece.kind for piece in cost.pieces[2:6]] == ["lts", "identity", "ts", "ms"]
    assert cost.wall(1) == pytest.approx(5.0 + cost.seconds, rel=1e-6)
    assert cost.disk == 4 * (3 * 7 * 10**6 + 5 * 10**6)
    assert cost.memory > RATES.memory


def test_trials_are_shared_out_where_workers_are_left_over():
    made = model(["identity(p0)", "ts(z)", "ms(z)", "lts(z)"])
    cost = modelled(made, made.experiment.jobs, [])
    whole = {piece.kind: piece.seconds for piece in cost.pieces}
    lts = cost.pieces[2].rounds
    assert cost.steps(1)[1] == [whole[kind] for kind in ("lts", "identity", "ts", "ms")]
    assert cost.steps(3)[1] == [*lts[0], *(whole[kind] for kind in ("identity", "ts", "ms"))]
    assert [len(step) for step in cost.steps(9)[1:]] == [10 + 1 + 1 + 10, 5 + 5, 5 + 5, 1 + 1]
    assert cost.wall(9) < cost.wall(3) < cost.wall(1)
    least = sum(max(step) for step in cost.steps(100))
    assert cost.wall(100) == cost.wall(1000) == pytest.approx(5.0 + least)


def test_evaluations_are_cut_into_shards():
    large = Extent(3, 10**6, 1e6, 1e6, 10 * 2.0**22, {}, 0)
    made = model(["identity(z)", "ts(z)"], extent=large)
    (piece,) = modelled(made, [], made.experiment.jobs).pieces
    assert [len(tasks) for tasks in piece.rounds] == [10, 1]
    assert piece.seconds == pytest.approx(2.0 + (2e-6 + 5e-6) * large.test)
    assert sum(piece.rounds[0]) == pytest.approx(10 * 2.0 + (2e-6 + 5e-6) * large.test)


def test_a_selection_costs_its_cross_fits_and_one_fit_on_all_voxels():
    small = Extent(3, 10**6, 1e5, 1e5, 4e5, {}, 0)
    made, passes = model(["ts(z)"], extent=small), PASSES["ts"]
    (ours,) = modelled(made, [], [], [SelectionJob(0)]).pieces
    crossfits = 4 * 2e5 * (10 * passes.trial * 3e-6 + 4e-6)  # four finite strengths, ten folds
    rest = 2e5 * (2e-6 + passes.first * 3e-6) + 2 * 5e-6 * 4e5 + 2.0
    assert (ours.stage, ours.seconds) == ("selection", pytest.approx(crossfits + rest))
    (all_cases,) = modelled(made, [], [], [SelectionJob(None)]).pieces
    assert all_cases.seconds < 3 * ours.seconds  # six times the voxels, but cross-fits see a sample


@pytest.mark.parametrize(("workers", "seconds"), [(1, 15.0), (2, 9.0), (3, 9.0), (4, 9.0), (50, 9.0)])
def test_tasks_go_to_the_first_worker_that_is_free(workers, seconds):
    assert finish_time([9.0, 1.0, 3.0, 2.0], workers) == seconds


def test_the_order_of_tasks_matters():
    assert (finish_time([1.0, 1.0, 4.0], 2), finish_time([4.0, 1.0, 1.0], 2)) == (5.0, 4.0)
    assert finish_time([], 3) == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        finish_time([1.0], 0)


def test_what_is_done_costs_nothing(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=12)
    names = ["identity(z)", "ts(z)"]
    run_small(store.path, tmp_path / "calibration", pipelines=names)
    more = small_experiment(store.path, tmp_path / "calibration", pipelines=[*names, "ms(p)"])
    fits, scores = pending(more)
    assert fits == scores == [FitJob(0, "ms(p)"), FitJob(1, "ms(p)")]
    extent = Extent.of(more)
    assert extent.pooled == {"z": 0, "p": 12 * 32 * 40}
    assert extent.distances == 0
    done = small_experiment(store.path, tmp_path / "calibration", pipelines=names)
    assert cost_of(done) == Cost([], 0.0, 1, 0, 0)


def test_figures_are_measured_for_every_calibrator_of_the_plan(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=12)
    before = sorted(path for path in tmp_path.rglob("*"))
    rates = measure(small_experiment(store.path))
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert set(rates.calibrators) == {"identity", "ms", "dc", "lts_ti", "cms_op", "cdc", "ts", "ets"}
    for name, own in rates.calibrators.items():
        assert own.score > 0
        assert own.judge > 0
        assert (own.each > 0) == (name != "identity")
        assert (own.kept > 0) == (own.solver == "newton")
    assert min(rates.pooling, rates.distance, rates.fit_job, rates.evaluation_job, rates.start) > 0
    assert rates.memory > 10**8


def test_the_paper_counts_960_fits():
    """16 calibrated pipelines of 20 trials in 3 repeats."""
    experiment = Experiment("nowhere", list(PAPER_PIPELINES))
    calibrated = [job for job in experiment.jobs if job.name.calibrator != "identity"]
    assert sum(experiment.trials_of(job) for job in calibrated) == 960
