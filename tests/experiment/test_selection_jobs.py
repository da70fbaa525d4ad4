"""Selection by groups as part of a run: what is written, resumed, skipped, and what happens where it fails."""

from pathlib import Path

import pytest

from lightning_calib.calibrators import PipelineName, Stack, load_calibrator
from lightning_calib.deployment.refit import refit
from lightning_calib.experiment import layout
from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.selection import jobs as selection_jobs
from lightning_calib.experiment.selection.evidence import Evidence
from lightning_calib.experiment.selection.jobs import SelectionJob, group_level, pending_selections, selection_hash
from lightning_calib.experiment.selection.records import read_selection
from lightning_calib.experiment.selection.select import choose, select_by_groups
from lightning_calib.experiment.selection.stacking import stacks_of
from lightning_calib.experiment.work import Work
from tests.experiment.grouped import grouped_experiment, run_grouped, write_groups
from tests.experiment.test_run import assert_same_files
from tests.stores import write_store


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Nine groups, all with logits twice too large."""
    return write_groups(tmp_path_factory.mktemp("grouped") / "outputs", [2.0] * 9)


@pytest.fixture(scope="module")
def run(outputs):
    return run_grouped(outputs.path, outputs.path.parent / "calibration")


def test_what_a_run_writes(outputs, run):
    assert run.failures == []
    assert run.settings["group_aware"]
    for repeat in (0, None):
        record = run.selection(repeat)
        assert record.ok
        assert [record.choices[key]["pipeline"] for key in ("order", "argmax", "none")] == ["ts(p)"] * 3
        assert record.unseen
        folder = layout.selection_folder(run.folder, repeat)
        for preserve in ("order", "argmax", "none"):
            calibrator = load_calibrator(folder / f"{preserve}.safetensors")
            assert calibrator.temperature.item() == pytest.approx(2.0, abs=0.3)
    assert run.selection().num_cases == len(outputs)
    assert [path["pipeline"] for path in run.selection().held_out["paths"]] == ["identity(p)", "ts(p)"]
    for repeat in run.repeats:
        scores = run.selection_scores(repeat)
        assert list(scores) == ["identity(p)", "ts(p)"]
        assert {row.case for row in scores["ts(p)"]} == set(run.test_cases(repeat))
        assert scores["identity(p)"] == run.cases_of(repeat, "identity(p)")


def test_one_cross_fit_gives_what_several_would(outputs):
    few = ["identity(p)", "ts(p)"]
    shared = Evidence(outputs, outputs.case_ids, outputs.groups, [*few, "dc(p)"])
    alone = select_by_groups(outputs, outputs.case_ids, outputs.groups, few)
    assert choose(shared, few, stacks_of(shared)).to_dict() == alone.to_dict()
    assert len(choose(shared, [*few, "dc(p)"]).rungs) == 2


def test_a_stack_is_a_pipeline_of_a_run(outputs, tmp_path):
    results = run_grouped(outputs.path, tmp_path / "calibration", pipelines="identity(p),ts(p),stack(p)", cal=0.6)
    assert results.failures == []
    record = results.fit(0, "stack(p)")
    assert sum(part["weight"] for part in record.certificate["parts"].values()) == pytest.approx(1)
    assert record.val_nll < record.identity_val_nll
    stack, scores = results.calibrator(0, "stack(p)"), results.cases_of(0, "stack(p)")
    assert isinstance(stack, Stack)
    assert stack.preserves == "order"
    assert all(row.score("flip") == 0 for row in scores)
    assert [rung["pipeline"] for rung in results.selection().choices["order"]["rungs"]] == ["ts(p)", "stack(p)"]
    again, facts = refit(results, outputs, PipelineName.parse("stack(p)"))
    assert facts["certificate"]["solver"] == "stacking"
    assert isinstance(again, Stack)
    assert facts["nll"] < facts["identity_nll"]


def test_workers_do_not_change_a_byte(outputs, run, tmp_path):
    again = run_grouped(outputs.path, tmp_path / "calibration", workers=2)
    assert_same_files(again.folder, run.folder)


def test_an_interrupted_run_goes_on(outputs, run, tmp_path):
    def work(folder: Path, **changes) -> Work:
        return Work(grouped_experiment(outputs.path, folder, **changes), folder)

    assert pending_selections(work(run.folder)) == []
    assert len(pending_selections(work(run.folder, seed=1))) == 2
    assert pending_selections(work(run.folder, trials=3)) == []
    layout.selection_folder(run.folder, 0).joinpath("none.safetensors").write_bytes(b"")
    assert pending_selections(work(run.folder)) == [SelectionJob(0)]
    kept = layout.selection_folder(run.folder, None) / layout.SELECTION
    before = kept.stat().st_mtime_ns
    again = run_grouped(outputs.path, run.folder)
    assert again.selection(0).ok
    assert kept.stat().st_mtime_ns == before
    assert pending_selections(work(run.folder)) == []


def test_a_selection_that_fails_is_reported_and_stops_nothing(outputs, tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError("no choice today")

    monkeypatch.setattr(selection_jobs, "choose", refuse)
    found = run_grouped(outputs.path, tmp_path / "calibration")
    assert [(f.pipeline, f.place) for f in found.failures] == [
        ("selection by groups", "all cases"),
        ("selection by groups", "repeat 0"),
    ]
    assert "no choice today" in found.failures[0].error
    assert found.summary["recommendation"]["order"]["pipeline"] == "ts(p)"
    monkeypatch.undo()
    again = run_grouped(outputs.path, found.folder)
    assert again.failures == []
    assert again.selection().ok


def test_too_few_groups_leave_the_ensemble_as_it_is(tmp_path):
    store = write_groups(tmp_path / "outputs", [2.0] * 4)
    found = run_grouped(store.path, tmp_path / "calibration")
    assert found.failures == []
    for repeat, count in ((None, 4), (0, 3)):
        choice = found.selection(repeat).choices["order"]
        assert choice["pipeline"] == "identity(p)"
        assert f"too few groups to tell ({count}; at least 5 needed)" in choice["reason"]
        assert found.selection(repeat).held_out is None
    assert list(found.selection_scores(0)) == ["identity(p)"]


def test_the_level_of_groups(outputs, tmp_path):
    assert group_level(outputs, outputs.case_ids) == outputs.group_levels[0]
    assert group_level(outputs, outputs.case_ids[:3]) == outputs.group_levels[0]
    assert group_level(outputs, outputs.case_ids, "case") == "case"
    assert group_level(write_store(tmp_path / "outputs", cases=3), ["case-00"]) == "case"
    hashes = {
        selection_hash(grouped_experiment(outputs.path, group_level=level), SelectionJob(0)) for level in (None, "case")
    }
    assert len(hashes) == 2


def test_groups_that_the_partition_tears_apart_are_told(tmp_path):
    store = write_groups(tmp_path / "outputs", [2.0] * 6, cases=3, torn=True)
    work = Work(grouped_experiment(store.path, tmp_path), tmp_path)
    selection_jobs.selection_job(work, SelectionJob(0))
    record = read_selection(layout.selection_folder(tmp_path, 0))
    assert record.level == "site"
    assert not record.unseen
    assert set(record.test_groups.values()) <= {f"g{number:02d}" for number in range(6)}


def test_groups_are_the_default_where_there_are_any(outputs, tmp_path):
    assert Experiment(outputs).by_groups
    assert Experiment(outputs).keeps_groups
    assert not Experiment(outputs, group_level="site").keeps_groups  # that level stays whole as it is
    assert not Experiment(outputs, selection="paper").by_groups
    single = write_store(tmp_path / "outputs")
    assert not single.group_levels
    assert not Experiment(single).by_groups
    assert Experiment(single, selection="groups").by_groups
    assert Experiment(single).describe()["selection"] == "paper"


def test_the_paper_selects_nothing_by_groups(outputs, tmp_path):
    work = Work(grouped_experiment(outputs.path), tmp_path)
    paper = Work(type(work.experiment)(outputs.path, selection="paper"), tmp_path)
    assert len(pending_selections(work)) == 2
    assert pending_selections(paper) == []
