"""What trackers wrote is read back from their files; numbers arrive while jobs run."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.tracking.journal import Follower, Journal
from lightning_calib.experiment.tracking.trackers import wandb_mode
from lightning_calib.experiment.tracking.tracking import JOURNALS, final_figures, tracking
from tests.experiment.settings import small_experiment
from tests.experiment.synthetic import write_outputs
from tests.references.wandb_file import wandb_records

EXPERIMENT = "shapes study"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report with one figure."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "figures").mkdir()
    Image.fromarray(np.full((8, 12, 3), 200, dtype=np.uint8)).save(folder / "figures" / "reliability.png")
    (folder / "index.html").write_text("<p>report")
    return folder / "index.html"


@pytest.fixture(autouse=True)
def nobody_has_chosen_a_run(monkeypatch, tmp_path):
    for key in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_RUN_GROUP", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))


def track(name, results, page, folder, runs="experiment", **settings):
    """A run with one journal, as an experiment leads it."""
    root = folder / "calibration"
    config = {"repeats": 3, "dataset": {"name": "shapes"}, "pipelines": ["ts(p)", "cms_op(p)"]} | settings
    with tracking(name, EXPERIMENT, root, config, runs=runs) as tracked:
        journal = Journal(root / JOURNALS / "a.jsonl", "cms_op-p/1")
        with tracked.following():
            for step in range(4):
                journal.log_metrics({"fit/objective": 1 / (step + 1), "epoch": step}, step)
        tracked.finish(results, page)
    assert not (root / JOURNALS).exists()
    return folder / "tracking" / name


def csv_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv(results, page, tmp_path):
    folder = track("csv", results, page, tmp_path)
    rows = csv_rows(folder / "metrics.csv")
    curve = [float(row["value"]) for row in rows if row["key"] == "fit/cms_op-p/1/objective"]
    assert curve == [1, 1 / 2, 1 / 3, 1 / 4]
    values = {row["key"]: float(row["value"]) for row in rows}
    assert values["cms_op-p/nll"] == results.summary["pipelines"]["cms_op(p)"]["metrics"]["nll"]["mean"]
    assert "uncalibrated/ece" in values
    assert "recommended/ece" in values
    assert [row["pipeline"] for row in csv_rows(folder / "main.csv")] == list(results.pipelines)
    assert len(csv_rows(folder / "comparisons.csv")) == 28
    assert len(csv_rows(folder / "cases.csv")) == len(results.cases())
    assert json.loads((folder / "config.json").read_text())["dataset.name"] == "shapes"


def wandb_runs(folder):
    """Every W&B run that was written: its records, and the record of the run itself."""
    found = [wandb_records(path) for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb"))]
    return [(records, next(r.run for r in records if r.WhichOneof("record_type") == "run")) for records in found]


def wandb_history(records):
    return [{(item.key or item.nested_key[0]): json.loads(item.value_json) for item in r.history.item} for r in records]


def test_wandb_offline(results, page, tmp_path):
    folder = track("wandb", results, page, tmp_path)
    ((records, run),) = wandb_runs(folder)
    assert (run.display_name, run.job_type, run.project) == (EXPERIMENT, "calibration", "lightning_calib")
    config = {item.key: json.loads(item.value_json) for r in records for item in r.config.update}
    assert config["dataset"] == {"name": "shapes"}
    history = wandb_history(records)
    key = "fit/cms_op-p/1/objective"
    assert [step[key] for step in history if key in step] == [1, 1 / 2, 1 / 3, 1 / 4]
    final = next(step for step in history if "cms_op-p/nll" in step)
    assert final["cms_op-p/nll"] == pytest.approx(final_figures(results)["cms_op-p/nll"])
    files = next((folder / "wandb").glob("offline-run-*")) / "files" / "media"
    main = json.loads(next(files.glob("table/main*.json")).read_text())
    assert [row[0] for row in main["data"]] == list(results.pipelines)
    assert len(list(files.glob("table/comparisons*.json"))) == 1
    assert len(list(files.glob("images/**/*.png"))) == 1
    kept = {r.artifact.type: r.artifact for r in records if r.WhichOneof("record_type") == "artifact"}
    chosen = PipelineName.parse(results.summary["recommendation"]["order"]["pipeline"]).slug
    contents = {kind: {entry.path for entry in artifact.manifest.contents} for kind, artifact in kept.items()}
    assert {f"repeats/{r}/{chosen}/calibrator.safetensors" for r in results.repeats} <= contents["calibrator"]
    assert {"cases.csv", "summary.json", "settings.json"} <= contents["tables"]
    assert contents["report"] == {"index.html"}
    assert kept["report"].name == "shapes-study-report"


def test_wandb_has_a_run_of_each_pipeline_by_request_and_the_same_line_continues_them(results, page, tmp_path):
    for _ in range(2):
        folder = track("wandb", results, page, tmp_path, runs="pipelines")
    runs = wandb_runs(folder)
    assert len(runs) == 6
    assert {run.run_group for _, run in runs} == {EXPERIMENT}
    assert sorted(run.display_name for _, run in runs) == sorted([EXPERIMENT, "cms_op-p", "ts-p"] * 2)
    assert len({run.run_id for _, run in runs}) == 3
    records = next(records for records, run in runs if run.display_name == "cms_op-p")
    config = {item.key: json.loads(item.value_json) for r in records for item in r.config.update}
    assert config["pipeline"] == "cms_op(p)"
    history = wandb_history(records)
    assert [step["fit/1/objective"] for step in history if "fit/1/objective" in step] == [1, 1 / 2, 1 / 3, 1 / 4]
    final = next(step for step in history if "nll" in step)
    assert final["nll"] == pytest.approx(final_figures(results)["cms_op-p/nll"])


@pytest.mark.parametrize("sweep", [None, "sweep"])
def test_a_sweep_or_a_given_id_gets_exactly_its_own_run(results, page, tmp_path, monkeypatch, sweep):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_RUN_ID", "of-a-sweep")
    if sweep:
        monkeypatch.setenv("WANDB_SWEEP_ID", sweep)
    with pytest.warns(UserWarning, match="chosen already .* no runs of pipelines"):
        folder = track("wandb", results, page, tmp_path, runs="pipelines")
    ((records, run),) = wandb_runs(folder)
    assert (run.run_id, run.sweep_id) == ("of-a-sweep", sweep or "")
    assert any("recommended/nll" in step for step in wandb_history(records))


@pytest.mark.parametrize(
    ("mode", "sweep", "expected"),
    [("", "", "offline"), ("online", "", "online"), ("", "abc", "online"), ("offline", "abc", "offline")],
)
def test_only_a_sweep_is_online_without_being_told(monkeypatch, mode, sweep, expected):
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_SWEEP_ID", sweep)
    assert wandb_mode() == expected


def test_a_run_that_the_program_has_begun_is_used_and_left_open(results, page, tmp_path):
    import wandb

    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    with wandb.init(mode="offline", dir=tmp_path, id="mine", settings=settings) as run:
        track("wandb", results, page, tmp_path)
        run.log({"after": 1.0})
    wandb.teardown()
    ((records, run),) = wandb_runs(tmp_path)
    assert run.run_id == "mine"
    assert {"recommended/nll", "after"} <= {key for step in wandb_history(records) for key in step}


def test_a_run_that_fails_is_marked(tmp_path):
    def fail():
        with tracking("wandb", EXPERIMENT, tmp_path / "calibration", {}):
            raise RuntimeError("the crash of this test")

    with pytest.raises(RuntimeError, match="crash"):
        fail()
    ((records, _),) = wandb_runs(tmp_path / "tracking" / "wandb")
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [1]


def test_tensorboard(results, page, tmp_path):
    folder = track("tensorboard", results, page, tmp_path)
    (version,) = (folder / EXPERIMENT).iterdir()
    events = EventAccumulator(str(version))
    events.Reload()
    assert [point.value for point in events.Scalars("fit/cms_op-p/1/objective")] == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 4]
    )
    assert events.Images("figures/reliability")[0].width == 12
    text = events.Tensors("main/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| cms_op(p) |" in text


def test_tensorboard_has_a_run_of_each_pipeline_and_continues_them(results, page, tmp_path):
    for _ in range(2):
        folder = track("tensorboard", results, page, tmp_path, runs="pipelines")
    (version,) = (folder / EXPERIMENT).iterdir()
    assert sorted(path.name for path in version.iterdir() if path.is_dir()) == ["cms_op-p", "ts-p"]
    events = EventAccumulator(str(version / "cms_op-p"))
    events.Reload()
    assert len(events.Scalars("fit/1/objective")) == 8  # twice: this journal was written anew
    assert events.Scalars("nll")[0].value == pytest.approx(final_figures(results)["cms_op-p/nll"])


def test_csv_continues(results, page, tmp_path):
    for _ in range(2):
        folder = track("csv", results, page, tmp_path, runs="pipelines")
    for file, key in (("metrics.csv", "fit/cms_op-p/1/objective"), ("cms_op-p/metrics.csv", "fit/1/objective")):
        assert [row["key"] for row in csv_rows(folder / file)].count(key) == 8


def test_mlflow_file_store(results, page, tmp_path):
    from mlflow.tracking import MlflowClient

    for repeats in (3, 4):
        folder = track("mlflow", results, page, tmp_path, runs="pipelines", repeats=repeats)
    client = MlflowClient(f"file:{folder}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(client.search_runs([experiment.experiment_id])) == 3  # continued by the second call
    run, child = runs[EXPERIMENT], runs["cms_op-p"]
    assert run.info.status == "FINISHED"
    assert run.data.metrics["cms_op-p/nll"] == pytest.approx(final_figures(results)["cms_op-p/nll"])
    assert run.data.params["dataset.name"] == "shapes"
    assert (run.data.params["repeats"], run.data.tags["repeats"]) == ("3", "4")  # parameters never change in MLflow
    assert child.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert child.data.metrics["nll"] == run.data.metrics["cms_op-p/nll"]
    artifacts = next(folder.glob(f"*/{run.info.run_id}/artifacts"))
    assert json.loads((artifacts / "main.json").read_text())["columns"] == list(results.table().columns)
    assert (artifacts / "figures" / "reliability.png").is_file()
    assert (artifacts / "report" / "index.html").is_file()
    assert (artifacts / "tables" / "cases.csv").is_file()
    assert len(list((artifacts / "calibrator").rglob("calibrator.safetensors"))) == len(results.repeats)


@pytest.mark.parametrize("name", [None, "none"])
def test_none_writes_nothing(tmp_path, name):
    with tracking(name, EXPERIMENT, tmp_path / "calibration", {}) as tracked:
        assert tracked is None
    assert list(tmp_path.iterdir()) == []


def test_a_follower_hands_on_whole_lines_once_and_sees_a_second_attempt(tmp_path):
    seen = []
    follower = Follower(tmp_path, lambda metrics, step: seen.append((metrics, step)))
    journal = Journal(tmp_path / "a.jsonl")
    journal.log_metrics({"x": 1.0}, 0)
    with journal.path.open("a") as file:
        file.write('{"step": 1, "metr')
    follower.catch_up()
    follower.catch_up()
    assert seen == [({"x": 1.0}, 0)]
    with journal.path.open("a") as file:
        file.write('ics": {"x": 2.0}}\n')
    follower.catch_up()
    assert seen[1:] == [({"x": 2.0}, 1)]
    keep = journal.path.open()  # its inode stays taken, as it may on a busy disk
    Journal(tmp_path / "a.jsonl").log_metrics({"x": 3.0}, 0)
    follower.catch_up()
    keep.close()
    assert seen[2:] == [({"x": 3.0}, 0)]


def test_an_experiment_brings_its_numbers_to_the_tracker_when_they_arise(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=9)
    small_experiment(store.path, pipelines=["identity(p)", "ms(p)"], repeats=1, cal=3, val=3).run(
        workers=1, logger="csv", display=False
    )
    keys = [row["key"] for row in csv_rows(tmp_path / "tracking" / "csv" / "metrics.csv")]
    first = {key.split("/")[0] + "/" + key.split("/")[-1]: n for n, key in reversed(list(enumerate(keys)))}
    assert "search/ms-p/0/val_nll" in keys
    assert "fit/ms-p/0/objective" in keys
    assert "test/ms-p/0/nll" in keys
    assert "test/identity-p/0/ba_ece" in keys
    assert {"progress/fit", "progress/evaluate_seconds_left"} <= set(keys)
    assert first["search/val_nll"] < first["fit/objective"] < first["test/nll"] < keys.index("recommended/nll")
