"""What trackers wrote is read back from their files."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_calib.experiment.trackers import track
from lightning_calib.experiment.tracking import main_table, pipeline_run, reliability_table, summary_run, tracked_runs
from tests.references.wandb_file import wandb_records

EXPERIMENT = "shapes study"


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "reliability.png"
    Image.fromarray(np.full((8, 12, 3), 200, dtype=np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def runs(results, figure):
    """One pipeline's run and the summary."""
    return [pipeline_run(results, 1, "cms_op(p)"), summary_run(results, {"reliability": figure})]


def test_every_repeat_and_pipeline_is_a_run(results):
    runs = list(tracked_runs(results))
    assert len(runs) == 3 * 19 + 1
    assert len({run.name for run in runs}) == len(runs)
    assert runs[-1].kind == "summary"


def test_a_run_carries_the_figures_of_its_repeat(results, runs):
    rows = results.cases_of(1, "cms_op(p)")
    assert runs[0].metrics["test/nll"] == pytest.approx(np.mean([row.nll for row in rows]))
    assert runs[0].metrics["test/ace"] == results.average_calibration_error(1, "cms_op(p)")
    assert runs[0].curves["fit/val_nll"][0][0] == 0
    table = reliability_table(results, 1, "cms_op(p)")
    assert sum(row[1] for row in table.rows) == sum(row.voxels for row in rows)


def test_a_failed_pipeline_is_a_run_without_figures(broken_results):
    run = pipeline_run(broken_results, 1, "dc(z)")
    assert run.config["status"] == "failed"
    assert run.metrics == {}


def csv_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv(runs, results, tmp_path):
    assert track(runs, "csv", EXPERIMENT, tmp_path) == 2
    folder = tmp_path / "csv" / "shapes_study"
    metrics = csv_rows(folder / "cms_op-p_repeat_1" / "metrics.csv")
    assert float(metrics[-1]["test/nll"]) == pytest.approx(runs[0].metrics["test/nll"])
    assert "fit/val_nll" in metrics[0]
    main = csv_rows(folder / "summary" / "main.csv")
    assert [row["pipeline"] for row in main] == list(results.pipelines)
    assert float(main[0]["nll"]) == results.summary["pipelines"]["identity(p0)"]["metrics"]["nll"]["mean"]


def test_wandb_offline(runs, results, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    track(runs, "wandb", EXPERIMENT, tmp_path)
    paths = sorted((tmp_path / "wandb" / "wandb").glob("offline-run-*/*.wandb"))
    found = {}
    for path in paths:
        records = wandb_records(path)
        run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
        found[run.display_name] = (run, records, path.parent)
    run, records, folder = found["cms_op(p) repeat 1"]
    assert (run.run_group, run.job_type, run.project) == (EXPERIMENT, "pipeline", "lightning_calib")
    config = {item.key: json.loads(item.value_json) for r in records for item in r.config.update}
    config |= {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["pipeline"], config["repeat"]) == ("cms_op(p)", 1)
    history = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in r.history.item} for r in records
    ]
    assert [step["fit/val_nll"] for step in history if "fit/val_nll" in step] == [
        value for _, value in runs[0].curves["fit/val_nll"]
    ]
    summary = {(i.key or i.nested_key[0]): json.loads(i.value_json) for r in records for i in r.summary.update}
    assert summary["test/nll"] == pytest.approx(runs[0].metrics["test/nll"])
    table = json.loads(next(folder.glob("files/media/table/reliability*.json")).read_text())
    assert table["columns"] == ["bin", "voxels", "confidence", "accuracy"]
    _, _, folder = found["summary"]
    main = json.loads(next(folder.glob("files/media/table/main*.json")).read_text())
    assert [row[0] for row in main["data"]] == list(results.pipelines)
    assert len(list(folder.glob("files/media/table/comparisons*.json"))) == 1
    assert len(list(folder.glob("files/media/images/**/*.png"))) == 1


def test_tensorboard(runs, tmp_path):
    track(runs, "tensorboard", EXPERIMENT, tmp_path)
    folder = tmp_path / "tensorboard" / "shapes_study"
    events = EventAccumulator(str(folder / "cms_op-p_repeat_1"))
    events.Reload()
    assert events.Scalars("test/nll")[-1].value == pytest.approx(runs[0].metrics["test/nll"], rel=1e-6)
    assert len(events.Scalars("fit/val_nll")) == 9
    summary = EventAccumulator(str(folder / "summary"))
    summary.Reload()
    assert summary.Images("figures/reliability")[0].width == 12
    text = summary.Tensors("main/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| cms_op(p) |" in text


def test_mlflow_file_store(runs, results, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    track(runs, "mlflow", EXPERIMENT, tmp_path)
    client = MlflowClient(f"file:{tmp_path / 'mlflow'}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(found) == {"cms_op(p) repeat 1", "summary"}
    run = found["cms_op(p) repeat 1"]
    assert run.data.metrics["test/nll"] == pytest.approx(runs[0].metrics["test/nll"])
    assert run.data.params["pipeline"] == "cms_op(p)"
    artifacts = next((tmp_path / "mlflow").glob(f"*/{found['summary'].info.run_id}/artifacts"))
    main = json.loads((artifacts / "main.json").read_text())
    assert main["columns"] == main_table(results.summary).columns
    assert (artifacts / "figures" / "reliability.png").is_file()


def test_none_writes_nothing(runs, tmp_path):
    assert track(runs, "none", EXPERIMENT, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
