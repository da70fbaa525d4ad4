"""Selection by groups from the command line: run, recommend, report, deploy, apply."""

import json

import pytest

from lightning_calib.calibrators import load_calibrator
from lightning_calib.deployment.folder import CALIBRATOR, Deployment
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import sha256
from tests.deployment.runs import calibrate
from tests.experiment.grouped import write_groups

SETTINGS = {"pipelines": "identity(p),ts(p)", "repeats": 2, "trials": 1, "cal": 0.35, "val": 0.25, "workers": 0}


def run_groups(outputs, **options) -> int:
    pairs = [text for name, value in (SETTINGS | options).items() for text in (f"--{name}", value)]
    return calibrate("run", "--outputs", outputs, "--selection", "groups", *pairs)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Nine groups with logits twice too large, through a run with its report."""
    folder = tmp_path_factory.mktemp("selected")
    write_groups(folder / "outputs", [2.0] * 9)
    assert run_groups(folder / "outputs") == 0
    return folder


def test_recommend_speaks_of_the_procedure(run, capsys):
    assert calibrate("recommend", "--calibration", run / "calibration") == 0
    told = capsys.readouterr().out
    assert told.startswith("Deploy ts(p): on groups that it had not seen the selection saves 0.")
    assert "groups gain" in told
    assert "Chosen in the repeats: ts(p) (2)." in told
    assert calibrate("recommend", "--calibration", run / "calibration", "--json", "true") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gain"]["low"] > 0
    assert 0 <= facts["loss_probability"] < 0.2
    assert min(facts["by_group"], key=facts["by_group"].get) == facts["worst_group"]


def test_the_summary_judges_each_choice_on_its_test_cases(run):
    results = Results(run)
    found = results.summary["selection"]["order"]
    gains = []
    for repeat in results.repeats:
        scores = results.selection_scores(repeat)
        pairs = zip(scores["identity(p)"], scores["ts(p)"], strict=True)
        gains.append([before.score("nll") - after.score("nll") for before, after in pairs])
    mean = sum(sum(part) / len(part) for part in gains) / len(gains)
    assert found["gain"]["mean"] == pytest.approx(mean, rel=1e-6)
    assert found["scores"]["nll"]["change"]["mean"] == pytest.approx(-mean, rel=1e-6)
    assert set(found["by_group"]) == {case[:3] for repeat in results.repeats for case in results.test_cases(repeat)}


def test_the_report_shows_the_ladder(run):
    page = (run / "report" / "index.html").read_text()
    assert "Selection by groups" in page
    assert "The ladder on all cases" in page
    assert 'id="figure-selection-gains"' in page
    assert "on groups that it had not seen" in page


def test_deploy_takes_what_was_selected(run, capsys):
    assert calibrate("deploy", "--calibration", run / "calibration") == 0
    deployed = Deployment.load(run / "deployed")
    selected = run / "calibration" / "selection" / "order.safetensors"
    ours, theirs = (load_calibrator(path).state_dict() for path in (run / "deployed" / CALIBRATOR, selected))
    assert all(ours[key].equal(theirs[key]) for key in theirs)
    assert deployed.pipeline == "ts(p)"
    assert deployed.fit["num_cases"] == 18
    assert deployed.fit["selection"]["groups"] == 9
    assert (
        deployed.estimate["nll"]["mean"] == Results(run).summary["selection"]["order"]["scores"]["nll"]["after"]["mean"]
    )
    card = (run / "deployed" / "README.md").read_text()
    assert "Selected by groups." in card
    assert "on groups that it had not seen" in card
    applied = run / "applied"
    command = ("apply", "--deployed", run / "deployed", "--outputs", run / "outputs", "--destination", applied)
    assert calibrate(*command) == 0
    assert any(applied.iterdir())


def test_a_changed_selection_is_not_deployed(run, capsys):
    path = run / "calibration" / "repeats" / "1" / "selection" / "order.safetensors"
    whole, before = path.read_bytes(), sha256(path)
    path.write_bytes(whole[:-4] + b"\0\0\0\0")
    command = ("deploy", "--calibration", run / "calibration", "--cases", "cal_val", "--repeat", 1)
    assert calibrate(*command, "--destination", run / "other") == 2
    assert "changed or damaged since it was written" in capsys.readouterr().err
    path.write_bytes(whole)
    assert sha256(path) == before


def test_too_few_groups_leave_the_ensemble_as_it_is(tmp_path, capsys):
    write_groups(tmp_path / "outputs", [2.0] * 4)
    assert run_groups(tmp_path / "outputs", repeats=1, report="false") == 0
    words = "Leave the ensemble as it is: too few groups to tell (4; at least 5 needed)"
    assert words in capsys.readouterr().out
    assert calibrate("deploy", "--calibration", tmp_path / "calibration") == 0
    assert Deployment.load(tmp_path / "deployed").pipeline == "identity(p)"
    assert words in (tmp_path / "deployed" / "README.md").read_text()
