"""Calibrators that look at features, through a run, its selection and report, deployment and its application."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from lightning_calib.calibrators import load_calibrator
from lightning_calib.deployment import CalibratedEnsemble
from lightning_calib.experiment import layout
from lightning_calib.experiment.plan import Experiment
from lightning_calib.functional.features import make_features
from lightning_calib.functional.pooling import pool
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.report.build import build_report
from lightning_calib.report.maps import case_plane
from lightning_calib.studies.audit import measure_cases
from tests.deployment.runs import calibrate
from tests.experiment.test_run import assert_same_files
from tests.featured import write_featured

NAMES = ["identity(p)", "ts(p)", "fts(p)", "case_ts(p)"]


def run_featured(outputs, folder, workers=0, **changes):
    settings = {"pipelines": NAMES, "repeats": 1, "trials": 1, "cal": 0.5, "val": 0.2, "selection": "groups"}
    experiment = Experiment(outputs, calibration=folder, **(settings | changes))
    return experiment.run(workers=workers, display=False, logger=None)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_featured(tmp_path_factory.mktemp("featured") / "outputs")


@pytest.fixture(scope="module")
def run(store):
    return run_featured(store.path, store.path.parent / "calibration")


@pytest.fixture(scope="module")
def deployed(run):
    assert calibrate("deploy", "--calibration", run.folder, "--pipeline", "fts(p)") == 0
    return run.folder.parent / "deployed"


def nll(results, pipeline):
    return np.mean([row.score("nll") for row in results.cases_of(0, pipeline)])


def test_a_temperature_from_features_is_better_than_one_for_all(run):
    assert run.failures == []
    assert nll(run, "fts(p)") < 0.95 * nll(run, "ts(p)")
    assert nll(run, "case_ts(p)") < nll(run, "identity(p)")
    flips = {name: {row.score("flip") for row in run.cases_of(0, name)} for name in NAMES}
    assert all(found == {0.0} for found in flips.values())


def test_selection_by_groups_takes_it(run):
    record = run.selection()
    assert record.ok
    assert record.choices["order"]["pipeline"] == "fts(p)"
    calibrator = load_calibrator(layout.selection_folder(run.folder, None) / "order.safetensors")
    assert calibrator.name == "fts"


@pytest.mark.slow
def test_workers_do_not_change_a_byte(store, run, tmp_path):
    shutil.copytree(store.path, tmp_path / "outputs", ignore=shutil.ignore_patterns("cache"))
    again = run_featured(tmp_path / "outputs", tmp_path / "calibration", workers=2)
    assert (tmp_path / "outputs" / "cache" / "features-p-2").is_dir()
    assert again.failures == []
    for name in NAMES:
        assert_same_files(again.job_folder(0, name), run.job_folder(0, name))


def test_the_report_shows_its_temperatures(store, run, tmp_path):
    page = build_report(run.folder, store.path, tmp_path / "report").read_text(encoding="utf-8")
    assert "Temperatures that fts(p) predicts for each voxel" in page
    cases, calibrator = StoredCases(store, "p"), run.calibrator(0, "fts(p)")
    temperature = case_plane(cases, store.case_ids[0], calibrator).temperature
    assert temperature[:, 8:].mean() > 1.5 * temperature[:, :8].mean()


def test_its_promises_hold_on_the_store(store, run):
    cases = StoredCases(store, "p")
    for name in ("fts(p)", "case_ts(p)"):
        calibrator = run.calibrator(0, name)
        assert measure_cases(calibrator, cases, store.case_ids[:3]).violations(True, "order") == []


def test_a_deployed_ensemble_makes_the_features(store, deployed, tmp_path):
    ensemble = CalibratedEnsemble.load(deployed, networks=False)
    where = ["--deployed", deployed, "--outputs", store.path, "--precision", "float32"]
    for name, more in (("plain", []), ("guarded", ["--guard", "true"])):
        assert calibrate("apply", *where, "--destination", tmp_path / name, *more) == 0
    for case in list(store)[:3]:
        expected = ensemble.calibrate(case.logits[None])
        pooled = pool(case.logits[None], "p")
        features = make_features(ensemble.pipeline.calibrator.feature_names, pooled, case.logits[None])
        assert torch.equal(expected.log_probs, ensemble.pipeline.calibrator(pooled, features))
        maps = load_file(tmp_path / "plain" / f"{case.case_id}.safetensors")
        assert (maps["probs"] - expected.log_probs[0].exp()).abs().max() < 1e-6
        assert (maps["mask"] == case.pooled("p").argmax(0)).all()
    index = json.loads((tmp_path / "guarded" / "index.json").read_text())
    assert len(index["cases"]) == len(store)
    with pytest.raises(ValueError, match=r"disagreement, votes, mutual_information cannot be made of pooled logits"):
        ensemble.calibrate_pooled(pooled)


@pytest.mark.parametrize(("pooling", "inputs"), [("true", ["member_logits"]), ("false", ["logits", "features"])])
def test_an_exported_graph_gives_the_same(store, deployed, tmp_path, pooling, inputs):
    path = tmp_path / "graph.onnx"
    assert calibrate("export", "--deployed", deployed, "--pooling", pooling, "--destination", path) == 0
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == inputs
    ensemble = CalibratedEnsemble.load(deployed, networks=False)
    members = store["case-03"].logits[None, :, :, :13]  # of another size than the graph was made with
    pooled = pool(members, "p")
    features = make_features(ensemble.pipeline.calibrator.feature_names, pooled, members)
    known = {"member_logits": members, "logits": pooled, "features": features}
    log_probs, mask, _ = session.run(None, {name: known[name].contiguous().numpy() for name in inputs})
    expected = ensemble.calibrate(members)
    np.testing.assert_allclose(log_probs, expected.log_probs.numpy(), rtol=1e-4, atol=1e-4)
    assert (mask == expected.mask.numpy()).all()


def test_a_store_of_pooled_maps_says_what_is_missing(tmp_path):
    store = write_featured(tmp_path / "outputs", cases=8, keep="pooled")
    names = ["identity(z)", "fts(z)", "fts_pooled(z)", "case_ts_pooled(z)"]
    found = run_featured(store.path, tmp_path / "calibration", pipelines=names, selection="paper")
    (failure,) = found.failures
    assert failure.pipeline == "fts(z)"
    missing = "disagreement, votes, mutual_information need the members' scores"
    assert f"keeps pooled maps alone, but {missing}" in failure.error
    assert nll(found, "fts_pooled(z)") < nll(found, "identity(z)")
