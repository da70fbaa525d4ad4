"""What trackers wrote is read back from their files; numbers arrive while jobs run."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_calib.experiment.journal import Follower, Journal
from lightning_calib.experiment.tracking import JOURNALS, final_figures, tracking
from tests.experiment.settings import small_experiment
from tests.experiment.synthetic import write_outputs
from tests.references.wandb_file import wandb_records

EXPERIMENT = "shapes study"


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "reliability.png"
    Image.fromarray(np.full((8, 12, 3), 200, dtype=np.uint8)).save(path)
    return path


def track(name, results, figure, folder):
    """A run with one journal, as an experiment leads it."""
    root = folder / "calibration"
    with tracking(name, EXPERIMENT, root, {"repeats": 3, "dataset": {"name": "shapes"}}) as tracked:
        journal = Journal(root / JOURNALS / "a.jsonl", "cms_op-p/1")
        with tracked.following():
            for step in range(4):
                journal.log_metrics({"fit/objective": 1 / (step + 1), "epoch": step}, step)
        tracked.finish(results, {"reliability": figure})
    assert not (root / JOURNALS).exists()
    return folder / "tracking" / name


def csv_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv(results, figure, tmp_path):
    folder = track("csv", results, figure, tmp_path)
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


def test_wandb_offline(results, figure, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = track("wandb", results, figure, tmp_path)
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    records = wandb_records(path)
    run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (run.display_name, run.job_type, run.project) == (EXPERIMENT, "calibration", "lightning_calib")
    config = {item.key: json.loads(item.value_json) for r in records for item in r.config.update}
    assert config["dataset"] == {"name": "shapes"}
    history = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in r.history.item} for r in records
    ]
    key = "fit/cms_op-p/1/objective"
    assert [step[key] for step in history if key in step] == [1, 1 / 2, 1 / 3, 1 / 4]
    final = next(step for step in history if "cms_op-p/nll" in step)
    assert final["cms_op-p/nll"] == pytest.approx(final_figures(results)["cms_op-p/nll"])
    files = path.parent / "files" / "media"
    main = json.loads(next(files.glob("table/main*.json")).read_text())
    assert [row[0] for row in main["data"]] == list(results.pipelines)
    assert len(list(files.glob("table/comparisons*.json"))) == 1
    assert len(list(files.glob("images/**/*.png"))) == 1


def test_the_same_folder_continues_the_same_wandb_run(results, figure, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for _ in range(2):
        folder = track("wandb", results, figure, tmp_path)
    runs = [
        next(r.run for r in wandb_records(path) if r.WhichOneof("record_type") == "run")
        for path in (folder / "wandb").glob("offline-run-*/*.wandb")
    ]
    assert len({run.run_id for run in runs}) == 1


def test_tensorboard(results, figure, tmp_path):
    folder = track("tensorboard", results, figure, tmp_path)
    (version,) = (folder / EXPERIMENT).iterdir()
    events = EventAccumulator(str(version))
    events.Reload()
    assert [point.value for point in events.Scalars("fit/cms_op-p/1/objective")] == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 4]
    )
    assert events.Images("figures/reliability")[0].width == 12
    text = events.Tensors("main/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| cms_op(p) |" in text


def test_mlflow_file_store(results, figure, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    folder = track("mlflow", results, figure, tmp_path)
    client = MlflowClient(f"file:{folder}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["cms_op-p/nll"] == pytest.approx(final_figures(results)["cms_op-p/nll"])
    assert run.data.params["dataset.name"] == "shapes"
    artifacts = next(folder.glob(f"*/{run.info.run_id}/artifacts"))
    assert json.loads((artifacts / "main.json").read_text())["columns"] == list(results.table().columns)
    assert (artifacts / "figures" / "reliability.png").is_file()


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
    assert first["search/val_nll"] < first["fit/objective"] < first["test/nll"] < keys.index("recommended/nll")
