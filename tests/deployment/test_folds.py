"""What is made of an out-of-fold store says so: report, model card, application to an ensemble."""

from pathlib import Path

import pytest

from lightning_calib.deployment.deploy import deploy
from lightning_calib.deployment.folder import CARD, Deployment, DeploymentError
from lightning_calib.experiment.results import Results
from lightning_calib.outputs.folds import SENTENCE
from lightning_calib.outputs.store import OutputStore
from lightning_calib.report.build import build_report
from tests.experiment.synthetic import write_outputs, write_results


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A made-up run on an out-of-fold store of five networks."""
    folder = tmp_path_factory.mktemp("folds")
    store = write_outputs(folder / "outputs", cases=9, members=1, folds=5)
    write_results(folder / "calibration", store, ["identity(p)", "ts(p)"], repeats=1)
    deploy(Results(folder / "calibration"), store, folder / "deployed", "ts(p)")
    return folder


def test_the_report_says_so(run):
    page = build_report(run / "calibration", run / "outputs", run / "report").read_text(encoding="utf-8")
    assert SENTENCE in page
    assert "1 (out of 5 folds)" in page
    assert Results(run / "calibration").dataset["folds"] == 5


def test_the_model_card_says_so(run):
    card = (run / "deployed" / CARD).read_text(encoding="utf-8")
    assert SENTENCE in card
    assert "all pool cases, out of 5 folds" in card


def test_an_ensemble_is_taken_with_a_warning(run, tmp_path, recwarn):
    deployment, own = Deployment.load(run / "deployed"), OutputStore(run / "outputs").manifest
    deployment.refuse_others(own, run)
    assert not recwarn.list
    pooled = write_outputs(tmp_path / "outputs", cases=2, members=3).manifest
    with pytest.warns(UserWarning, match=r"has 3 members\. These calibrators are fitted out of fold"):
        deployment.refuse_others(pooled, tmp_path / "outputs")


def test_other_deployments_are_for_their_number_of_members(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=9, members=2)
    write_results(tmp_path / "calibration", store, ["identity(p)", "ts(p)"], repeats=1)
    deployment = deploy(Results(tmp_path / "calibration"), store, tmp_path / "deployed", "ts(p)")
    assert SENTENCE not in (tmp_path / "deployed" / CARD).read_text(encoding="utf-8")
    three = write_outputs(tmp_path / "three", cases=2, members=3).manifest
    with pytest.raises(DeploymentError, match="num_members: 3 there, 2 deployed"):
        deployment.refuse_others(three, tmp_path)
