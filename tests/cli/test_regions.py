"""Stores of regions through run, report, deploy, apply and export."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import expit

from lightning_calib.cli.calibrate import main
from lightning_calib.deployment import DeploymentError, RegionEnsemble
from lightning_calib.experiment.layout import ResultsError
from lightning_calib.experiment.regions import nesting, read_runs
from lightning_calib.experiment.results import Results
from tests.stores import write_region_store, write_store

SMALL = ["--repeats", "1", "--trials", "1", "--cal", "3", "--val", "2", "--workers", "0", "--logger", "none"]


def calibrate(*line):
    return main([str(word) for word in line])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A finished run on two nested regions, deployed."""
    folder = tmp_path_factory.mktemp("runs") / "brats"
    outputs = write_region_store(folder / "outputs", cases=8, shape=(12, 16), regions=2)
    assert calibrate("run", "--outputs", outputs, "--pipelines", "identity(p),cms_op(p)", *SMALL) == 0
    assert calibrate("deploy", "--calibration", folder / "calibration", "--pipeline", "cms_op(p)") == 0
    return folder


def member_logits(folder, case_id="case-00"):
    return load_file(folder / "outputs" / "cases" / f"{case_id}.safetensors")["logits"]  # (M, R, *S)


def test_every_region_has_an_experiment_and_a_report_and_there_is_a_page_over_all(home):
    for name in ("whole_tumor", "core"):
        results = Results(home / "regions" / name / "calibration")
        assert results.missing == []
        assert results.summary["pipelines"]["cms_op(p)"]["metrics"]["flip"]["mean"] == 0
        assert (home / "regions" / name / "report" / "index.html").is_file()
    page = (home / "report" / "index.html").read_text()
    assert 'href="../regions/core/report/index.html"' in page
    assert "Calibration of toy<" in page
    assert "cms_op(p)" in page
    assert (home / "report" / "regions.csv").read_text().count("\n") == 5  # two pipelines a region


def test_regions_are_divided_alike(home):
    splits = [Results(home / "regions" / name / "calibration").split(0) for name in ("whole_tumor", "core")]
    assert splits[0] == splits[1]


def test_figures_of_nesting_are_those_of_numpy(home):
    runs = read_runs(home / "calibration")
    found = nesting(runs, ["identity(p)", "identity(p)"])
    rows = []
    for case_id in runs[0].results.split(0)["test"]:
        probs = expit(member_logits(home, case_id).double().numpy()).mean(0)  # (R, *S)
        labels = load_file(home / "outputs" / "cases" / f"{case_id}.safetensors")["target"].numpy()
        whole, core = probs
        contradicts = (core > 0.5) & (whole <= 0.5)
        nested = np.where(contradicts, core, np.minimum(core, whole))
        counted, inside = labels != 255, labels >= 2
        nll = [-np.log(np.where(inside, p, 1 - p))[counted].mean() for p in (core, nested)]
        rows.append([*nll, (nested < core)[counted].mean(), contradicts[counted].mean()])
    expected = np.mean(rows, axis=0)
    np.testing.assert_allclose(list(vars(found[1]).values()), expected, atol=1e-6)
    assert found[0].lowered == found[0].contradicting == 0
    assert found[0].nll == pytest.approx(runs[0].results.summary["pipelines"]["identity(p)"]["metrics"]["nll"]["mean"])


def test_a_finished_run_is_not_computed_again(home, capsys):
    line = ["run", "--outputs", home / "outputs", "--pipelines", "identity(p),cms_op(p)", *SMALL]
    assert calibrate(*line, "--report", "false", "--json") == 0
    facts = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [fact["failures"] for fact in facts] == [[], []]
    with pytest.raises(ResultsError, match="several regions"):
        Results(home)


def test_one_tracked_run_is_not_shared_by_several_regions(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_RUN_ID", "of-a-sweep")
    outputs = write_region_store(tmp_path / "outputs", cases=2, shape=(4, 4), regions=2)
    assert calibrate("run", "--outputs", outputs, "--pipelines", "identity(p)", "--logger", "wandb") == 2
    assert "several regions" in capsys.readouterr().err


@pytest.mark.slow
def test_the_report_is_made_again_from_files(home):
    (home / "report" / "index.html").unlink()
    assert calibrate("report", "--calibration", home / "calibration") == 0
    assert (home / "report" / "index.html").is_file()


def test_the_deployed_model_keeps_decisions_and_writes_a_map_a_region(home, tmp_path):
    assert "`cms_op(p)`" in (home / "deployed" / "README.md").read_text()
    line = ("apply", "--deployed", home / "deployed", "--outputs", home / "outputs", "--precision", "float32")
    assert calibrate(*line, "--destination", tmp_path) == 0
    maps = load_file(tmp_path / "case-00.safetensors")
    assert (tmp_path / "case-00_probs_core.png").is_file()
    members = member_logits(home)
    ensemble = RegionEnsemble.load(home / "deployed")
    result = ensemble.calibrate(members[None])
    pooled = ensemble.pool(members[None])
    assert torch.equal(result.probs > 0.5, pooled > 0)
    for number, name in enumerate(("probs_whole_tumor", "probs_core")):
        assert torch.equal(maps[name], result.probs[0, number])
    whole, core = pooled[0] > 0
    expected = torch.where(core, 2, torch.where(whole, 1, 0))
    assert torch.equal(maps["mask"].long(), expected)
    agree = ~(core & ~whole)
    assert (maps["probs_core"] <= maps["probs_whole_tumor"])[agree].all()


def test_one_region_of_the_deployed_model_serves_by_itself(home, tmp_path):
    view = home / "regions" / "core" / "outputs"
    line = ("--deployed", home / "deployed" / "core", "--outputs", view)
    assert calibrate("apply", *line, "--destination", tmp_path, "--guard") == 0
    assert calibrate("monitor", *line) == 0


def test_other_stores_are_refused(home, tmp_path):
    classes = write_store(tmp_path / "outputs", cases=1)
    with pytest.raises(DeploymentError, match="holds no regions, not Whole Tumor, core"):
        RegionEnsemble.load(home / "deployed").refuse_others(classes.path)


@pytest.mark.parametrize("pooling", [True, False])
def test_onnx(home, tmp_path, pooling):
    path = tmp_path / "regions.onnx"
    line = ("export", "--deployed", home / "deployed", "--destination", path, "--pooling", str(pooling).lower())
    assert calibrate(*line) == 0
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    assert entry.name == ("member_logits" if pooling else "logits")
    ensemble = RegionEnsemble.load(home / "deployed")
    generator = torch.Generator().manual_seed(0)
    members = torch.randint(-2, 3, (3, 2, 2, 5, 9), generator=generator).float()  # with ties; another size
    scores = members if pooling else ensemble.pool(members)
    logits, probs, mask = (torch.from_numpy(each) for each in session.run(None, {entry.name: scores.numpy()}))
    expected = ensemble.calibrate(members)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(probs, expected.probs, rtol=1e-5, atol=1e-5)
    assert torch.equal(mask, expected.mask)
    assert torch.equal(logits > 0, ensemble.pool(members) > 0)


def test_a_folder_of_sigmoid_outputs(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for folder in ("scores", "labels"):
        (tmp_path / folder).mkdir()
    for number in range(2):
        labels = np.kron(rng.integers(0, 3, (4, 4)), np.ones((4, 4), int))
        z = 3 * np.stack([labels >= 1, labels == 2]) - 1.5 + rng.normal(size=(2, 16, 16))
        np.save(tmp_path / "scores" / f"case{number}.npy", expit(z).astype(np.float32))
        np.save(tmp_path / "labels" / f"case{number}.npy", labels)
    line = ("import", "folder", "--scores", [str(tmp_path / "scores")], "--targets", tmp_path / "labels")
    line += ("--representation", "probs", "--class_names", ["rest", "shell", "core"], "--outputs", tmp_path / "outputs")
    assert calibrate(*line, "--regions", "{whole: [1, 2], core: [2]}") == 0
    text = capsys.readouterr().out
    assert "2 cases, 1 members, 2 regions" in text
    view = tmp_path / "regions" / "whole" / "outputs"
    assert str(view) in text
    assert calibrate("fit", "--outputs", view, "--pipeline", "ts(z)", "--cal", "1", "--val", "1") == 0
    assert calibrate("fit", "--outputs", tmp_path / "outputs", "--pipeline", "ts(z)", "--cal", "1", "--val", "1") == 2
    assert "name the view of one of them" in capsys.readouterr().err
