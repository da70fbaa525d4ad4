"""The whole protocol: complete, repeatable to the byte, resumable from anywhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_calib.experiment import layout
from lightning_calib.experiment import run as benchmark
from lightning_calib.experiment.plan import Protocol, Task
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.run import evaluate_job, pending_evaluations, run_protocol
from lightning_calib.experiment.statistics import percentile_interval, two_level_bootstrap
from tests.experiment.settings import NAMES, small_protocol
from tests.experiment.synthetic import write_outputs


@pytest.fixture(scope="module")
def small_outputs(tmp_path_factory):
    return write_outputs(tmp_path_factory.mktemp("protocol") / "outputs", cases=12).path


@pytest.fixture(scope="module")
def finished(small_outputs):
    folder = small_outputs.parent / "calibration"
    run_protocol(small_protocol(small_outputs), folder, workers=0, display=False)
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
    results = Results.open(finished)
    assert results.missing == results.failures == []
    assert results.pipelines == tuple(NAMES)
    assert {len(results.split(0)[part]) for part in ("cal", "val", "test")} == {4, 3, 5}
    for name in ("ms(z)", "cms_op(p)", "lts_ti(z)"):
        fit = results.fit(1, name)
        assert fit["val_nll"] <= fit["identity_val_nll"]
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
    run_protocol(small_protocol(small_outputs), tmp_path / "calibration", workers=workers, display=False)
    assert_same_files(tmp_path / "calibration", finished)


def test_a_killed_run_goes_on_to_the_same_bytes(small_outputs, finished, tmp_path):
    command = [sys.executable, "-m", "tests.experiment.killing", str(small_outputs), str(tmp_path / "c"), "8", "0"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == 8  # every kill struck
    assert_same_files(tmp_path / "c", finished)


def stamps(folder: Path) -> dict[str, int]:
    """When each pipeline of repeat 0 was fitted and evaluated last."""
    return {
        f"{name} {file}": (layout.task_folder(folder, 0, name) / file).stat().st_mtime_ns
        for name in NAMES
        for file in (layout.FIT, layout.EVALUATION)
    }


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {key for key in before if before[key] != after[key]}


@pytest.fixture
def own_run(small_outputs, tmp_path):
    """A finished run that a test may change."""
    folder = tmp_path / "calibration"
    run_protocol(small_protocol(small_outputs, repeats=1), folder, workers=0, display=False)
    return folder


def test_changed_settings_recompute_what_depends_on_them(small_outputs, own_run):
    def rerun(**changes):
        before = stamps(own_run)
        run_protocol(small_protocol(small_outputs, repeats=1, **changes), own_run, workers=0, display=False)
        return changed(before, stamps(own_run))

    assert rerun() == set()
    assert rerun(threads=2) == set()
    assert rerun(lts_epochs=2) == {"lts_ti(z) fit.json", "lts_ti(z) evaluation.json"}
    (layout.task_folder(own_run, 0, "ts(z)") / layout.EVALUATION).unlink()
    before = stamps_but(own_run, "ts(z)")
    run_protocol(small_protocol(small_outputs, repeats=1, lts_epochs=2), own_run, workers=0, display=False)
    assert changed(before, stamps(own_run)) == set()
    assert len(rerun(seed=1)) == 2 * len(NAMES)


def stamps_but(folder, name):
    """As `stamps`, with one pipeline's evaluation left out."""
    kept = (layout.task_folder(folder, 0, other) for other in NAMES if other != name)
    files = {path.name: (path / layout.EVALUATION).stat().st_mtime_ns for path in kept}
    names = {layout.task_folder(folder, 0, other).name: other for other in NAMES}
    return {f"{names[key]} {layout.EVALUATION}": value for key, value in files.items()}


def test_groups_stay_together_and_are_drawn_together(small_outputs, tmp_path):
    protocol = small_protocol(small_outputs, pipelines=["identity(z)", "ts(z)"], repeats=1, group_aware=True)
    run_protocol(protocol, tmp_path, workers=0, display=False)
    results = Results.open(tmp_path)
    parts = [{protocol.store.groups[case] for case in results.split(0)[part]} for part in ("cal", "val", "test")]
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert results.clusters(0) == [protocol.store.groups[case] for case in results.test_cases(0)]
    assert len(set(results.clusters(0))) < len(results.clusters(0))
    values = results.scores("ts(z)", "nll")[0][:, None]
    drawn = percentile_interval(two_level_bootstrap([values], seed=protocol.seed, clusters=[results.clusters(0)]))
    found = results.summary["pipelines"]["ts(z)"]["metrics"]["nll"]
    assert (found["low"], found["high"]) == pytest.approx((drawn[0][0], drawn[1][0]), rel=1e-9)
    run_protocol(small_protocol(small_outputs, pipelines=["ts(z)"], repeats=1), tmp_path, workers=0, display=False)
    again = Results.open(tmp_path)
    assert again.clusters(0) == list(again.test_cases(0))


def test_another_store_is_other_work(small_outputs, tmp_path):
    other = write_outputs(tmp_path / "outputs", cases=12, seed=1).path
    task = Task(0, "ts(z)")
    assert small_protocol(small_outputs).fit_hash(task) != small_protocol(other).fit_hash(task)


def test_seeds_are_the_tasks_own():
    seeds = {Task(r, name).seed(s) for r in range(3) for name in NAMES for s in range(3)}
    assert len(seeds) == 3 * 3 * len(NAMES)


def test_a_failed_pipeline_does_not_stop_the_others(small_outputs, tmp_path, monkeypatch):
    real = benchmark.search

    def failing(name, *args, **options):
        if str(name) == "ms(z)":
            raise RuntimeError("no optimum today")
        return real(name, *args, **options)

    protocol = small_protocol(small_outputs, pipelines=["identity(z)", "ms(z)", "dc(z)"], repeats=1)
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "search", failing)
        summary = run_protocol(protocol, tmp_path, workers=0, display=False)
    assert [(f["repeat"], f["pipeline"]) for f in summary["failures"]] == [(0, "ms(z)")]
    assert summary["failures"][0]["error"].startswith("RuntimeError: no optimum today")
    assert list(summary["pipelines"]) == ["identity(z)", "dc(z)"]
    summary = run_protocol(protocol, tmp_path, workers=0, display=False)  # failures are tried again
    assert summary["failures"] == []
    assert list(summary["pipelines"]) == ["identity(z)", "ms(z)", "dc(z)"]


@pytest.mark.parametrize("workers", [0, 2])
def test_one_damaged_calibrator_costs_one_pipeline(small_outputs, tmp_path, workers):
    protocol = small_protocol(small_outputs, pipelines=["identity(z)", "ts(z)", "dc(z)"], repeats=3)
    run_protocol(protocol, tmp_path, workers=0, display=False)
    before = contents(tmp_path)
    for repeat in range(3):
        for name in ("ts(z)", "dc(z)"):
            (layout.task_folder(tmp_path, repeat, name) / layout.EVALUATION).unlink()
    (layout.task_folder(tmp_path, 0, "dc(z)") / layout.CALIBRATOR).write_bytes(b"damaged")
    summary = run_protocol(protocol, tmp_path, workers=workers, display=False)
    assert [(f["repeat"], f["pipeline"]) for f in summary["failures"]] == [(0, "dc(z)")]
    assert "ts(z)" in summary["pipelines"]
    after = contents(tmp_path)
    others = [name for name in before if name.startswith("repeats/") and "0/dc-z/" not in name]
    assert others
    assert {name: after[name] for name in others} == {name: before[name] for name in others}


def test_a_pass_serves_all_pipelines_of_a_pooling(small_outputs, finished, tmp_path):
    protocol = small_protocol(small_outputs)
    assert pending_evaluations(protocol, finished) == []
    protocol = small_protocol(small_outputs, seed=7)
    assert pending_evaluations(protocol, finished) == []  # nothing is fitted with this seed yet
    with pytest.raises(FileNotFoundError):
        evaluate_job(protocol, tmp_path, benchmark.EvaluationJob(0, "z", ("ts(z)",)))


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
        Protocol("outputs", **changes)


def test_pipelines_can_be_named_in_several_ways():
    assert len(Protocol("outputs").names) == 19
    assert Protocol("outputs", "ts(z), ms(z)").names == Protocol("outputs", ["ts(z)", "ms(z)", "ts(z)"]).names
