"""The library in Python, as the README and the docs show it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import lightning_calib as lc
from tests.experiment.synthetic import label_map, member_logits, write_outputs
from tests.outputs.test_import_nnunet import write_predictions


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    store = write_outputs(tmp_path_factory.mktemp("api") / "outputs", cases=12)
    how = {"repeats": 2, "trials": 2, "cal": 4, "val": 3, "selection": "paper"}
    experiment = lc.Experiment(store, pipelines="identity(p), ts(p), ms(z)", **how)
    return experiment.run(workers=0, display=False, logger=None)


def test_every_public_name_is_there_and_a_wrong_one_lists_them():
    for name in lc.__all__:
        assert getattr(lc, name).__name__ == name
    with pytest.raises(AttributeError, match=r"no 'calibrat'; it has .*calibrate"):
        _ = lc.calibrat


def test_importing_costs_nothing():
    code = "import sys, lightning_calib; assert not {'torch', 'pandas', 'pytorch_lightning'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["ts", "cms_op", "ets"])
def test_one_calibrator_in_one_call(name):
    rng = np.random.default_rng(0)
    target = torch.stack([label_map(rng) for _ in range(3)])
    logits = torch.stack([member_logits(rng, labels, 1, 6.7)[0] for labels in target])
    result = lc.calibrate(logits, target, name)
    assert result.after["nll"] < result.before["nll"]
    assert result.after["ece"] < result.before["ece"]
    assert result.after["flip"] == 0
    assert torch.equal(result(logits), result.log_probs)
    assert result.certificate.converged
    assert "negative log-likelihood" in result.table().index
    assert len(result.figure().axes) == 2
    assert "<table" in result._repr_html_()
    assert result.figure()._repr_png_().startswith(b"\x89PNG")
    assert repr(result).startswith(f"Calibration({name}: nll ")


def test_the_slider_shows_what_temperatures_do():
    rng = np.random.default_rng(0)
    target = label_map(rng)[None]
    logits = member_logits(rng, target[0], 1, 6.7)
    target[0, :5] = 255
    slider = lc.calibrate(logits, target, "ts", ignore_index=255).slider(bins=10)
    valid = target != 255
    for place in (0, 20, 40):
        log_probs = (logits / slider.temperatures[place]).log_softmax(1)
        confidence, winner = log_probs.exp().max(1)
        confidence, right = confidence[valid].double().numpy(), (winner == target)[valid].double().numpy()
        bins = np.minimum((confidence * 10).astype(int), 9)
        gaps = [abs(right[bins == b].sum() - confidence[bins == b].sum()) for b in range(10)]
        assert slider.ece[place] == pytest.approx(sum(gaps) / len(right), abs=1e-6)
        nll = torch.nn.functional.cross_entropy(logits / slider.temperatures[place], target, ignore_index=255)
        assert slider.nll[place] == pytest.approx(nll.item(), rel=1e-5)
    page = slider._repr_html_()
    drawn = json.loads(re.search(r"data = (\[.*?\]), colours", page)[1])
    assert [entry["t"] for entry in drawn] == slider.temperatures
    assert sum(share for _, _, share in drawn[20]["bins"]) == pytest.approx(1, abs=1e-3)
    assert 'src="data:image/png;base64,' in page
    assert slider._repr_html_().split('"')[1] != page.split('"')[1]  # several on one page


def test_numpy_and_lists_of_voxels_are_taken():
    rng = np.random.default_rng(0)
    logits = 5 * rng.standard_normal((500, 4)).astype(np.float32)
    target = rng.integers(0, 4, 500)
    result = lc.calibrate(logits, target, "vs")
    assert result.log_probs.shape == (500, 4)
    assert result.after["nll"] < result.before["nll"]


def test_results_are_frames(results):
    assert list(results.table().pipeline) == ["identity(p)", "ts(p)", "ms(z)"]
    assert len(results.cases()) == 2 * 3 * 5
    found = results.compare("identity(p)", "ts(p)")
    assert list(found.score) == ["nll", "dice", "ece", "ba_ece"]
    assert found.verdict.isin(["better", "worse", "within noise"]).all()
    with pytest.raises(ValueError, match=r"dc\(z\) has no scores"):
        results.compare("identity(p)", "dc(z)")
    assert results.recommend("order").pipeline == "ts(p)"
    assert "ms(z)" in results._repr_html_()
    assert "ms(z)" in results.paper_table().to_markdown()
    assert "<b>Deploy ts(p)" in results.recommend("order")._repr_html_()
    assert lc.load_results(results.folder.parent).pipelines == results.pipelines


def test_a_pipeline_is_deployed_and_applied(results):
    model = results.deploy("ts(p)")
    scores = torch.stack([results.store[case].logits for case in results.store.case_ids[:2]])
    log_probs = model(scores)
    assert log_probs.shape == (2, 4, *scores.shape[3:])
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(2, *scores.shape[3:]))
    again = lc.load_model(results.folder.parent / "deployed")
    assert torch.equal(again(scores), log_probs)


def test_a_store_is_made_of_arrays(tmp_path):
    rng = np.random.default_rng(0)
    target = {case: label_map(rng).numpy() for case in "abc"}
    logits = {case: member_logits(rng, torch.from_numpy(labels), 2, 1.0).numpy() for case, labels in target.items()}
    store = lc.from_arrays(tmp_path / "outputs", logits, target, groups={"a": "one", "b": "one"})
    assert store.manifest.num_members == 2
    np.testing.assert_array_equal(store["b"].target, target["b"])
    with pytest.raises(ValueError, match="b, c are in one only"):
        lc.from_arrays(tmp_path / "other", logits, {"a": target["a"]})
    with pytest.raises(ValueError, match="no cases"):
        lc.from_arrays(tmp_path / "other", {}, {})


def test_nnunet_results_are_a_store(tmp_path):
    write_predictions(tmp_path)
    folds = [tmp_path / "fold_0", tmp_path / "fold_1"]
    store = lc.import_nnunet(tmp_path / "outputs", tmp_path / "labels", predictions=folds)
    assert store.manifest.num_members == 2
    assert store.manifest.representation == "log_probs"
