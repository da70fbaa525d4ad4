"""A whole experiment: complete, repeatable to the byte, resumable from anywhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_calib.calibrators import OrderPreservingScaling, load_calibrator
from lightning_calib.executors.base import Executor, Outcome, attempt
from lightning_calib.experiment import evaluation_jobs, fit_jobs, layout
from lightning_calib.experiment.parts import PoolJob, ShardJob, TrialJob
from lightning_calib.experiment.plan import EvaluationJob, Experiment, FitJob
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import clustered_bootstrap, percentile_interval
from lightning_calib.experiment.steps import pending_evaluations, pending_pools
from lightning_calib.experiment.work import Work
from lightning_calib.kit.files import FileError, locked
from lightning_calib.outputs.store import OutputStore
from tests.experiment.settings import NAMES, run_small, small_experiment
from tests.experiment.synthetic import write_outputs


@pytest.fixture(scope="module")
def small_outputs(tmp_path_factory):
    return write_outputs(tmp_path_factory.mktemp("experiment") / "outputs", cases=12).path


@pytest.fixture(scope="module")
def finished(small_outputs):
    folder = small_outputs.parent / "calibration"
    run_small(small_outputs, folder, workers=0)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files but times."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != layout.TIMING]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_same_files(folder: Path, expected: Path) -> None:
    found, wanted = contents(folder), contents(expected)
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == []


def test_everything_is_there(finished):
    results = Results(finished)
    assert results.missing == results.failures == []
    assert results.pipelines == tuple(NAMES)
    assert {len(results.split(0)[part]) for part in ("cal", "val", "test")} == {4, 3, 5}
    for name in ("ms(z)", "cms_op(p)", "lts_ti(z)"):
        fit = results.fit(1, name)
        assert fit.val_nll <= fit.identity_val_nll
        assert results.calibrator(1, name).name == name.split("(")[0]
        assert results.timing(1, name)["fit"] > 0
    summary = results.summary
    metrics = {name: summary["pipelines"][name]["metrics"] for name in NAMES}
    assert metrics["cms_op(p)"]["nll"]["mean"] < metrics["identity(z)"]["nll"]["mean"]
    assert all(metrics[name]["flip"]["high"] == 0 for name in ("lts_ti(z)", "cms_op(p)", "ts(z)", "ets(p)"))
    assert metrics["ts(z)"]["dice"] == metrics["identity(z)"]["dice"]
    assert metrics["ms(z)"]["flip"]["mean"] > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_a_byte(small_outputs, finished, tmp_path, workers):
    run_small(small_outputs, tmp_path / "calibration", workers=workers)
    assert_same_files(tmp_path / "calibration", finished)


class Backwards(Executor):
    """Many slots, and jobs that come in an order of their own."""

    slots = 8

    def __init__(self):
        self.done = []

    def run(self, jobs, work):
        for job in reversed(jobs):
            self.done.append(type(job))
            yield Outcome(job, attempt(work, job))

    def close(self):
        pass


def test_trials_side_by_side_do_not_change_a_byte(small_outputs, tmp_path):
    settings = {"pipelines": ["identity(z)", "ms(z)", "lts_ti(z)", "ets(p)"], "repeats": 1, "trials": 12}
    alone, executor = tmp_path / "alone", Backwards()
    run_small(small_outputs, alone, workers=0, lts_trials=2, **settings)
    run_small(small_outputs, tmp_path / "c", executor=executor, lts_trials=2, **settings)
    assert executor.done.count(TrialJob) == 14
    assert executor.done.count(FitJob) == 4
    assert executor.done.count(ShardJob) == 6
    assert_same_files(tmp_path / "c", alone)


def unevaluated(finished: Path, folder: Path) -> Path:
    """A copy of a run without its scores."""
    shutil.copytree(finished, folder)
    for path in [folder / layout.SUMMARY, *folder.rglob(layout.EVALUATION)]:
        path.unlink()
    return folder


def test_shards_do_not_change_a_byte(small_outputs, finished, tmp_path):
    run_small(small_outputs, unevaluated(finished, tmp_path / "c"), shard_voxels=10**9)
    assert_same_files(tmp_path / "c", finished)


def test_maps_are_made_once_and_before_the_fits(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=8)
    settings = {"pipelines": ["identity(p0)", "ts(z)"], "repeats": 1, "cal": 2, "val": 2}
    work = Work(small_experiment(store.path, **settings), tmp_path / "c", shard_voxels=2000)
    assert [(job.kind, len(job.case_ids)) for job in pending_pools(work)] == [
        *[("distance", 2)] * 2,
        *[("z", 2)] * 4,
    ]
    executor = Backwards()
    run_small(store.path, tmp_path / "c", executor=executor, **settings)
    assert executor.done[:6] == [PoolJob] * 6
    assert PoolJob not in executor.done[6:]
    assert pending_pools(Work(small_experiment(store.path, seed=5, **settings), tmp_path / "d")) != []  # distances
    store_maps = sorted(path.name for path in (store.path / "cache" / "z").iterdir())
    assert store_maps == [f"{case_id}.safetensors" for case_id in store.case_ids]


def test_leftovers_of_what_is_done_are_swept_away(small_outputs, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "c")
    for folder in ("repeats/0/ms-z/trials-0123456789abcdef", "repeats/1/evaluation"):
        (tmp_path / "c" / folder).mkdir()
        (tmp_path / "c" / folder / "0.json").touch()
    run_small(small_outputs, tmp_path / "c")
    assert_same_files(tmp_path / "c", finished)


def kill(outputs: Path, folder: Path, kills: int) -> None:
    """Run with so many kills, all of which strike."""
    command = [sys.executable, "-m", "tests.experiment.killing", str(outputs), str(folder), str(kills), "0"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == kills


def test_a_killed_run_goes_on_to_the_same_bytes(small_outputs, finished, tmp_path):
    kill(small_outputs, tmp_path / "c", 8)
    assert_same_files(tmp_path / "c", finished)


def test_killed_evaluations_go_on_to_the_same_bytes(small_outputs, finished, tmp_path):
    kill(small_outputs, unevaluated(finished, tmp_path / "c"), 3)
    assert_same_files(tmp_path / "c", finished)


def stamps(folder: Path) -> dict[str, int]:
    """When each pipeline of repeat 0 was fitted and evaluated last."""
    return {
        f"{name} {file}": (layout.job_folder(folder, 0, name) / file).stat().st_mtime_ns
        for name in NAMES
        for file in (layout.FIT, layout.EVALUATION)
    }


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {key for key in before if before[key] != after[key]}


@pytest.fixture
def own_run(small_outputs, tmp_path):
    """A finished run that a test may change."""
    folder = tmp_path / "calibration"
    run_small(small_outputs, folder, workers=0, repeats=1)
    return folder


def test_changed_settings_recompute_what_depends_on_them(small_outputs, own_run):
    def rerun(**changes):
        before = stamps(own_run)
        run_small(small_outputs, own_run, workers=0, repeats=1, **changes)
        return changed(before, stamps(own_run))

    assert rerun() == set()
    assert rerun(threads=2) == set()
    assert rerun(lts_epochs=2) == {"lts_ti(z) fit.json", "lts_ti(z) evaluation.json"}
    (layout.job_folder(own_run, 0, "ts(z)") / layout.EVALUATION).unlink()
    before = stamps_but(own_run, "ts(z)")
    run_small(small_outputs, own_run, workers=0, repeats=1, lts_epochs=2)
    assert changed(before, stamps(own_run)) == set()
    assert len(rerun(seed=1)) == 2 * len(NAMES)


def stamps_but(folder, name):
    """As `stamps`, with one pipeline's evaluation left out."""
    kept = (layout.job_folder(folder, 0, other) for other in NAMES if other != name)
    files = {path.name: (path / layout.EVALUATION).stat().st_mtime_ns for path in kept}
    names = {layout.job_folder(folder, 0, other).name: other for other in NAMES}
    return {f"{names[key]} {layout.EVALUATION}": value for key, value in files.items()}


def test_groups_stay_together_and_are_drawn_together(small_outputs, tmp_path):
    results = run_small(small_outputs, tmp_path, pipelines=["identity(z)", "ts(z)"], repeats=1, group_aware=True)
    groups = OutputStore(small_outputs).groups
    parts = [{groups[case] for case in results.split(0)[part]} for part in ("cal", "val", "test")]
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert results.clusters(0) == [groups[case] for case in results.test_cases(0)]
    assert len(set(results.clusters(0))) < len(results.clusters(0))
    values = results.scores("ts(z)", "nll")[0][:, None]
    drawn = percentile_interval(clustered_bootstrap([values], [results.clusters(0)]))
    found = results.summary["pipelines"]["ts(z)"]["metrics"]["nll"]
    assert (found["low"], found["high"]) == pytest.approx((drawn[0][0], drawn[1][0]), rel=1e-9)
    run_small(small_outputs, tmp_path, workers=0, pipelines=["ts(z)"], repeats=1)
    again = Results(tmp_path)
    assert again.clusters(0) == list(again.test_cases(0))


def test_another_store_is_other_work(small_outputs, tmp_path):
    other = write_outputs(tmp_path / "outputs", cases=12, seed=1).path
    job = FitJob(0, "ts(z)")
    assert small_experiment(small_outputs).fit_hash(job) != small_experiment(other).fit_hash(job)


def test_fits_whose_penalty_was_a_sum_over_experts_are_made_again(small_outputs, monkeypatch):
    experiment, jobs = small_experiment(small_outputs), [FitJob(0, "ts(z)"), FitJob(0, "cms_op(z)")]
    now = [experiment.fit_hash(job) for job in jobs]
    monkeypatch.setattr(OrderPreservingScaling, "conditional", False)  # what earlier versions hashed
    assert [experiment.fit_hash(job) == found for job, found in zip(jobs, now, strict=True)] == [True, False]


def test_seeds_are_the_tasks_own():
    seeds = {FitJob(r, name).seed(s) for r in range(3) for name in NAMES for s in range(3)}
    assert len(seeds) == 3 * 3 * len(NAMES)


def test_a_failed_fit_does_not_stop_the_others_and_is_tried_again(small_outputs, tmp_path, monkeypatch):
    real = fit_jobs.run_trials

    def failing(fitter, *args, **options):
        if str(fitter.name) == "ms(z)":
            raise RuntimeError("no optimum today")
        return real(fitter, *args, **options)

    settings = {"pipelines": ["identity(z)", "ms(z)", "dc(z)"], "repeats": 1}
    with monkeypatch.context() as patch:
        patch.setattr(fit_jobs, "run_trials", failing)
        summary = run_small(small_outputs, tmp_path, **settings).summary
    assert [(f["repeat"], f["pipeline"]) for f in summary["failures"]] == [(0, "ms(z)")]
    assert summary["failures"][0]["error"].startswith("RuntimeError: no optimum today")
    assert list(summary["pipelines"]) == ["identity(z)", "dc(z)"]
    summary = run_small(small_outputs, tmp_path, **settings).summary
    assert summary["failures"] == []
    assert list(summary["pipelines"]) == ["identity(z)", "ms(z)", "dc(z)"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_calibrator_is_fitted_anew(small_outputs, tmp_path, workers):
    settings = {"pipelines": ["identity(z)", "ts(z)", "dc(z)"], "repeats": 2}
    run_small(small_outputs, tmp_path, **settings)
    before = contents(tmp_path)
    (layout.job_folder(tmp_path, 0, "dc(z)") / layout.CALIBRATOR).write_bytes(b"damaged")
    assert run_small(small_outputs, tmp_path, workers, **settings).failures == []
    assert contents(tmp_path) == before


def test_a_failed_evaluation_keeps_the_fits_and_costs_one_pipeline(small_outputs, tmp_path, monkeypatch):
    settings = {"pipelines": ["identity(z)", "ts(z)", "dc(z)"], "repeats": 1}

    def failing(path):
        if "dc-z" in str(path):
            raise OSError("the disk is gone")
        return load_calibrator(path)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation_jobs, "load_calibrator", failing)
        results = run_small(small_outputs, tmp_path, **settings)
    assert [(f.repeat, f.pipeline) for f in results.failures] == [(0, "dc(z)")]
    assert results.failures[0].error.startswith("OSError: the disk is gone")
    assert results.scored == ["identity(z)", "ts(z)"]
    fit = results.job_folder(0, "dc(z)") / layout.FIT
    stamp = fit.stat().st_mtime_ns
    again = run_small(small_outputs, tmp_path, **settings)
    assert again.failures == []
    assert again.scored == settings["pipelines"]
    assert fit.stat().st_mtime_ns == stamp  # fitted once


def test_a_pass_serves_all_pipelines_of_a_pooling(small_outputs, finished, tmp_path):
    assert pending_evaluations(Work(small_experiment(small_outputs), finished)) == []
    unfitted = Work(small_experiment(small_outputs, seed=7), finished)
    assert pending_evaluations(unfitted) == []
    with pytest.raises(FileNotFoundError):
        evaluation_jobs.evaluation_job(
            unfitted.__class__(unfitted.experiment, tmp_path), EvaluationJob(0, "z", ("ts(z)",))
        )


def test_pipelines_of_earlier_calls_stay_in_the_results(small_outputs, tmp_path):
    run_small(small_outputs, tmp_path, pipelines=["identity(z)", "dc(z)"], repeats=1)
    results = run_small(small_outputs, tmp_path, pipelines=["ts(z)"], repeats=1)
    assert results.pipelines == ("identity(z)", "dc(z)", "ts(z)")
    assert results.scored == ["identity(z)", "dc(z)", "ts(z)"]
    assert list(results.summary["pipelines"]) == ["identity(z)", "dc(z)", "ts(z)"]


def test_pipelines_of_other_settings_do_not(small_outputs, tmp_path):
    run_small(small_outputs, tmp_path, pipelines=["identity(z)", "dc(z)"], repeats=1)
    results = run_small(small_outputs, tmp_path, pipelines=["ts(z)"], repeats=1, seed=3)
    assert results.pipelines == ("ts(z)",)


def test_a_second_run_in_the_folder_is_refused_and_harms_nothing(small_outputs, tmp_path):
    half_written = tmp_path / "repeats" / "0" / "ts-z" / ".fit.json.1.part"
    half_written.parent.mkdir(parents=True)
    half_written.touch()
    with locked(tmp_path, "the experiment in"), pytest.raises(FileError, match="in use by another process"):
        run_small(small_outputs, tmp_path, pipelines=["ts(z)"])
    assert half_written.is_file()


def test_what_is_fitted_on_neighbourhoods_gets_trials_of_its_own(small_outputs):
    slow = small_experiment(small_outputs, trials=7, lts_trials=3)
    trials = {
        name: slow.trials_of(FitJob(0, name)) for name in ("lts(z)", "lts_ti(p)", "fts_net(p)", "fts(p)", "ms(z)")
    }
    assert trials == {"lts(z)": 3, "lts_ti(p)": 3, "fts_net(p)": 3, "fts(p)": 7, "ms(z)": 7}
    assert small_experiment(small_outputs, trials=7, lts_trials=None).trials_of(FitJob(0, "fts_net(p)")) == 7


def test_an_empty_part_is_found_before_anything_is_fitted(small_outputs, tmp_path):
    with pytest.raises(ValueError, match="test of repeat 0 has no cases"):
        run_small(small_outputs, tmp_path, cal=6, val=6)
    assert not list(tmp_path.rglob(layout.FIT))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 0}, "repeats = 0"),
        ({"trials": 0}, "trials = 0"),
        ({"lts_trials": 0}, "lts_trials = 0"),
        ({"pipelines": []}, "no pipelines"),
        ({"pipelines": "ts(q)"}, "unknown pooling 'q'"),
        ({"pipelines": "tz(p)"}, "unknown calibrator 'tz'"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Experiment("outputs", **changes)


def test_pipelines_can_be_named_in_several_ways():
    assert len(Experiment("outputs").names) == 19
    assert Experiment("outputs", "ts(z), ms(z)").names == Experiment("outputs", ["ts(z)", "ms(z)", "ts(z)"]).names
