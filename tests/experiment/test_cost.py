"""The cost of an experiment before it is begun: lengths of jobs, time on workers, disk, memory."""

import pytest

from lightning_calib.calibrators import PAPER_PIPELINES
from lightning_calib.experiment.cost import Cost, cost_of, modelled, pending
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.rates import CalibratorRates, Rates, measure
from lightning_calib.experiment.schedule import Chain, finish_time
from lightning_calib.experiment.workload import PASSES, Extent, Model
from lightning_calib.solvers.stream import KEPT_BYTES
from tests.experiment.settings import run_small, small_experiment
from tests.experiment.synthetic import write_outputs

MS = CalibratorRates("newton", prepare=2e-6, first=1e-6, each=3e-6, step=0.5, judge=4e-6, score=5e-6, kept=100.0)
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


def model(names, extent=EXTENT, split=False, **settings):
    return Model(Experiment("nowhere", names, repeats=1, **settings), extent, RATES, split)


def search_seconds(names, **options):
    made = model([names], **options)
    return made.search(made.experiment.jobs[0]).seconds


def test_a_pipeline_without_parameters_is_judged_and_written():
    assert search_seconds("identity(z)") == pytest.approx(1.0 + 2 * 2e6 * 1e-6)


def test_a_search_by_newton_is_the_sum_of_its_passes():
    passes, trials = PASSES["ms"], 20
    around = 1.0 + 2 * 2e6 * 1e-6
    prepare = 3e6 * 2e-6

    def fit(count):
        return 1e6 * 1e-6 + count * (passes.share * 3e-6 * 1e6 + 0.5) + 4e-6 * 2e6

    expected = around + prepare + fit(passes.first) + (trials + 1) * fit(passes.trial)
    assert search_seconds("ms(z)", trials=trials) == pytest.approx(expected)


def test_voxels_beyond_the_memory_of_a_search_are_prepared_in_every_pass():
    large = Extent(3, 10**6, 2 * KEPT_BYTES / 100, 0.0, 0.0, {}, 0)
    passes = PASSES["ts"].first
    again = 2 * passes * 2e-6 * KEPT_BYTES / 100  # the trial and the selected fit
    kept = 2e-6 * KEPT_BYTES / 100
    rest = 1.0 + 2 * (1e-6 * large.cal + passes * (3e-6 * large.cal + 0.5))
    assert search_seconds("ts(z)", extent=large) == pytest.approx(again + kept + rest)


def test_adam_takes_as_many_epochs_as_it_is_given_at_most():
    few, many = (search_seconds("lts(z)", lts_trials=2, lts_epochs=epochs) for epochs in (1, 300))
    assert few == pytest.approx(1.0 + 4.0 + 3 * (7e-6 * 1e6 + 1e-6 * 2e6))
    assert 20 * few < many <= 300 * few


def test_splitting_a_search_changes_its_length_on_many_workers_alone():
    whole, split = (model(["ms(z)"], split=split).search(FitJob(0, "ms(z)")) for split in (False, True))
    assert [len(tasks) for tasks in split.rounds] == [1, 10, 5, 5, 1]
    assert split.longest < whole.longest / 3
    repeated = 21 * 3e6 * 2e-6  # every task prepares its voxels
    assert split.seconds == pytest.approx(whole.seconds + repeated)


def test_jobs_are_handed_out_longest_first_in_three_stages():
    made = model(["identity(p0)", "ts(z)", "lts(z)", "ms(z)"])
    cost = modelled(made, made.experiment.jobs, made.experiment.jobs)
    assert [piece.stage for piece in cost.pieces] == ["pooling"] * 2 + ["search"] * 4 + ["evaluation"] * 2
    lengths = [chain.longest for chain in cost.chains("search")]
    assert lengths == sorted(lengths, reverse=True)
    assert cost.wall(1) == pytest.approx(5.0 + cost.seconds)
    longest = sum(max(chain.longest for chain in cost.chains(s)) for s in ("pooling", "search", "evaluation"))
    assert cost.wall(100) == pytest.approx(5.0 + longest)
    assert cost.disk == 4 * (3 * 7 * 10**6 + 5 * 10**6)


@pytest.mark.parametrize(("workers", "seconds"), [(1, 21.0), (2, 12.0), (3, 9.0), (50, 9.0)])
def test_lengths_on_workers(workers, seconds):
    chains = [
        Chain("a", ((9.0,),)),
        Chain("b", ((1.0,), (2.0, 2.0), (1.0,))),
        Chain("c", ((3.0,),)),
        Chain("d", ((3.0,),)),
    ]
    assert finish_time(chains, workers) == seconds


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
