"""The deployed folder and the module that loads it."""

import json
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image

from lightning_calib.calibrators import ConstrainedMatrixScaling, Pipeline, Stack
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.deployment import CalibratedEnsemble, Deployment, DeploymentError
from lightning_calib.experiment.results import Results
from lightning_calib.kit.checksums import CHECKSUMS
from lightning_calib.outputs.store import OutputStore
from lightning_calib.solvers import mean_nll
from tests.calibrators.helpers import randomized
from tests.deployment.runs import calibrate


def test_images_and_stored_outputs_give_the_same(run, deployed):
    ensemble, store = CalibratedEnsemble.load(deployed), OutputStore(run / "outputs")
    shapes = Shapes(num_train=8, num_val=3, num_pool=24, size=(16, 24))
    for batch in list(shapes.predict_dataloader())[:3]:
        case = store[batch["case_id"][0]]
        from_images, from_scores = ensemble.predict_input(batch["image"]), ensemble.calibrate(case.logits[None])
        torch.testing.assert_close(from_images.log_probs, from_scores.log_probs, rtol=1e-5, atol=1e-5)
        assert torch.equal(from_images.mask, from_scores.mask)
        assert torch.equal(from_scores.mask[0], case.pooled("p").argmax(0))
        torch.testing.assert_close(from_scores.confidence, from_scores.log_probs.exp().amax(1))


@pytest.mark.parametrize("name", ["cms_op", "cms_ap", "ets", "lts"])
def test_the_mask_of_a_preserving_pipeline_is_the_pooled_argmax(name):
    ensemble = CalibratedEnsemble(Pipeline("z", randomized(name, 4, seed=0)))
    members = torch.randint(-1, 2, (1, 2, 4, 9, 9), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(ensemble.calibrate(members).mask, members.mean(1).argmax(1))


def test_the_mask_of_a_stack_follows_from_its_parts():
    members = torch.randint(-1, 2, (1, 2, 4, 9, 9), generator=torch.Generator().manual_seed(0)).float()
    parts = {name: randomized(name, 4, seed=0) for name in ("identity", "cms_ap", "ms")}
    kept = Stack.of([parts["identity"], parts["cms_ap"]], [0.01, 0.99])
    free = Stack.of([parts["identity"], parts["ms"]], [0.01, 0.99])
    kept_result, free_result = (CalibratedEnsemble(Pipeline("z", stack)).calibrate(members) for stack in (kept, free))
    assert torch.equal(kept_result.mask, members.mean(1).argmax(1))
    assert torch.equal(free_result.mask, free_result.log_probs.argmax(1))
    assert not torch.equal(free_result.mask, kept_result.mask)


def test_the_mask_of_a_free_pipeline_is_the_calibrated_argmax():
    ensemble = CalibratedEnsemble(Pipeline("z", randomized("ms", 4, seed=0)))
    result = ensemble.calibrate(torch.randn(1, 2, 4, 9, 9, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(result.mask, result.log_probs.argmax(1))


def test_the_refit_uses_all_cases_and_is_no_worse_on_them(run, deployed):
    deployment, store = Deployment.load(deployed), OutputStore(run / "outputs")
    assert deployment.fit["num_cases"] == len(store)
    assert deployment.fit["certificate"]["converged"]
    batches = [(case.pooled("p")[None], case.target[None], None) for case in store]
    final = mean_nll(deployment.read_calibrator(deployed), batches, None)[0]
    results = Results(run / "calibration")
    for repeat in results.repeats:
        assert final < mean_nll(results.calibrator(repeat, "cms_op(p)"), batches, None)[0] + 1e-6


def test_cal_and_val_of_a_repeat_leave_its_test_cases_out(run, tmp_path):
    where = ["--destination", tmp_path, "--cases", "cal_val", "--repeat", "1", "--networks", "false"]
    assert calibrate("deploy", "--calibration", run / "calibration", "--pipeline", "ms_c(z)", *where) == 0
    split = Results(run / "calibration").split(1)
    reference = json.loads((tmp_path / "reference.json").read_text())["cases"]
    assert {case["case_id"] for case in reference} == {*split["cal"], *split["val"]}
    assert Deployment.load(tmp_path).network is None


def test_the_card_tells_what_a_user_needs(deployed):
    text = (deployed / "README.md").read_text()
    for words in ("cms_op(p)", "identity(p)", "NLL", "disc", "24 cases (all pool cases)", "reliability.png"):
        assert words in text
    assert (deployed / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_the_card_has_the_form_of_the_hub(deployed, run):
    """Its own reader is the oracle."""
    card = ModelCard((deployed / "README.md").read_text())
    assert card.data.library_name == "lightning_calib"
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results}
    known = Results(run / "calibration").summary["pipelines"]["cms_op(p)"]["metrics"]
    assert scores["nll"] == pytest.approx(known["nll"]["mean"])
    assert {result.dataset_name for result in card.data.eval_results} == {Deployment.load(deployed).dataset}


def test_the_promises_are_measured_on_outputs(deployed):
    audit = json.loads((deployed / "audit.json").read_text())
    assert audit["declared"] == {"translation_invariant": True, "preserves": "order"}
    assert (audit["measured"]["argmax_changes"], audit["measured"]["inversions"]) == (0, 0)
    assert audit["passed"]
    assert audit["calibrator"]["sha256"] == Deployment.load(deployed).calibrator_sha256
    assert "audit.json" in (deployed / "README.md").read_text()


def test_a_broken_promise_stops_the_deployment(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ConstrainedMatrixScaling, "preserves", "argmax")
    monkeypatch.setattr(ConstrainedMatrixScaling, "finish", lambda self, log_probs, logits: log_probs)
    where = ["--destination", tmp_path, "--networks", "false"]
    assert calibrate("deploy", "--calibration", run / "calibration", "--pipeline", "ms_c(z)", *where) == 2
    assert "ms_c(z) breaks a promise" in capsys.readouterr().err
    assert not (tmp_path / "deployment.json").exists()


def test_a_moved_run_still_finds_its_networks(run, deployed, tmp_path):
    moved = tmp_path / "elsewhere"
    for part in ("deployed", "members"):
        shutil.copytree(run / part, moved / part)
    assert len(CalibratedEnsemble.load(moved / "deployed").members) == 2


def test_what_is_not_whole_is_refused(run, deployed, tmp_path):
    shutil.copytree(deployed, tmp_path / "deployed")
    with pytest.raises(DeploymentError, match="is missing"):
        CalibratedEnsemble.load(tmp_path / "deployed")  # the members are not beside it
    ensemble = CalibratedEnsemble.load(tmp_path / "deployed", networks=False)
    with pytest.raises(DeploymentError, match="cannot take images"):
        ensemble.predict_input(torch.zeros(1, 3, 8, 8))
    shutil.copy(run / "calibration/repeats/0/cms_op-p/calibrator.safetensors", tmp_path / "deployed")
    with pytest.raises(DeploymentError, match=r"changed or damaged since it was written: .*calibrator\.safetensors"):
        CalibratedEnsemble.load(tmp_path / "deployed", networks=False)
    (tmp_path / "deployed" / CHECKSUMS).unlink()  # as deployed by earlier versions
    with pytest.raises(DeploymentError, match="hash differs"):
        CalibratedEnsemble.load(tmp_path / "deployed", networks=False)
    (tmp_path / "deployed" / "deployment.json").write_text("{}")
    with pytest.raises(DeploymentError, match="does not describe"):
        Deployment.load(tmp_path / "deployed")


def test_raw_images_are_taken_in_every_form(run, deployed):
    ensemble = CalibratedEnsemble.load(deployed)
    path = sorted((run / "pictures").iterdir())[0]
    picture = Image.open(path)
    expected = ensemble.calibrate(OutputStore(run / "outputs")[path.stem].logits[None]).log_probs
    for image in (path, str(path), [path], picture, np.asarray(picture)):
        torch.testing.assert_close(ensemble.predict(image).log_probs, expected, rtol=1e-5, atol=1e-5)


WRONG = {
    "channels first": (np.zeros((3, 8, 8), np.uint8), "channels last"),
    "a batch": (np.zeros((1, 8, 8, 3), np.uint8), "one at a time"),
    "fractions": (np.zeros((8, 8, 3), np.float32), "8-bit RGB"),
    "a tensor": (torch.zeros(1, 3, 8, 8), "`predict_input`"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_axes_are_told(deployed, wrong):
    image, words = WRONG[wrong]
    with pytest.raises(DeploymentError, match=words):
        CalibratedEnsemble.load(deployed).predict(image)


def test_tensors_of_other_axes_are_told(deployed):
    ensemble = CalibratedEnsemble.load(deployed)
    for shape in ((3, 8, 8), (1, 8, 8, 3), (1, 1, 8, 8)):
        with pytest.raises(DeploymentError, match=r"take normalised images \(batch, 3 channels, H, W\)"):
            ensemble.predict_input(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"\(batch, members, 4 classes, \.\.\.\)"):
        ensemble(torch.zeros(1, 3, 8, 8))


def test_unknown_pipelines_are_refused(run, capsys):
    assert calibrate("deploy", "--calibration", run / "calibration", "--pipeline", "ts(z)") == 2
    assert "no scores of ts(z)" in capsys.readouterr().err
