"""Calibrators fitted out of fold meet the pool: fits, temperatures and scores against scipy and numpy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from lightning_calib.calibrators import build
from lightning_calib.experiment.rows import read_rows
from lightning_calib.functional.features import make_features
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.report.build import build_report
from lightning_calib.studies import cross_validation
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.cross_validation import BEST, CORRECTED, HELD_OUT, START, CrossValidation
from lightning_calib.studies.member_pool import MemberPool
from lightning_calib.studies.scores import ScoreRow
from tests.experiment.synthetic import write_outputs, write_results

NAMES = ["identity(z)", "ts(z)", "ts(p0)", "lts_ti(z)"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A made-up run on a pool of three, and the out-of-fold store of the same networks."""
    folder = tmp_path_factory.mktemp("folds")
    store = write_outputs(folder / "outputs", cases=9, members=3)
    write_outputs(folder / "out_of_fold", cases=6, members=1, seed=5, folds=3, prefix="trained")
    write_results(folder / "calibration", store, NAMES, repeats=2)
    study = CrossValidation(folder / "calibration", display=False)
    study.run(pipelines=["ts(z)", "ts(p0)"])
    return folder


def voxels(store, case_ids):
    """Scores (n, M, C) and labels (n) of some cases."""
    scores = [store[i].logits.double().flatten(2).permute(2, 0, 1).numpy() for i in case_ids]
    return np.concatenate(scores), np.concatenate([store[i].target.flatten().numpy() for i in case_ids])


def nll(scores, labels):
    return -log_softmax(scores, axis=-1)[np.arange(len(labels)), labels].mean()


def best(scores, labels):
    return np.exp(minimize_scalar(lambda t: nll(scores / np.exp(t), labels), bounds=(-4, 4), method="bounded").x)


def table(run, name="scores"):
    rows = read_rows(run / "calibration" / "studies" / "cross_validation" / f"{name}.csv", ScoreRow)
    return {(row.setting, row.pipeline, row.metric): row.mean for row in rows}


def test_fits_and_temperatures_are_those_of_scipy(run):
    study = CrossValidation(run / "calibration", display=False)
    facts = study.run(pipelines=["ts(z)", "ts(p0)"])
    single, labels = voxels(OutputStore(run / "out_of_fold"), OutputStore(run / "out_of_fold").case_ids)
    alone = best(single[:, 0], labels)
    judged = {setting: [] for setting in (START, CORRECTED, BEST)}
    temperatures = {CORRECTED: [], BEST: []}
    for repeat in study.results.repeats:
        parts = study.results.split(repeat)
        members, known = voxels(study.store, parts["cal"])
        calibrated = log_softmax(members / alone, axis=-1)
        entropy = -(np.exp(calibrated) * calibrated).sum(-1).mean()
        pooled = calibrated.mean(1)

        def excess(inverse, pooled=pooled, entropy=entropy):
            return (pooled * np.exp(log_softmax(pooled * inverse, axis=-1))).sum(-1).mean() + entropy

        low, high = 0.1, 60.0  # by bisection: it rises
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        temperatures[CORRECTED].append(1 / low)
        temperatures[BEST].append(best(pooled, known))
        for case in parts["test"]:
            members, known = voxels(study.store, [case])
            judged[START].append(nll(members.mean(1) / alone, known))
            own = log_softmax(members / alone, axis=-1).mean(1)
            for setting in (CORRECTED, BEST):
                judged[setting].append(nll(own / temperatures[setting][-1], known))
    for setting, found in judged.items():
        assert table(run)[setting, "ts(z)", "nll"] == pytest.approx(np.mean(found), rel=1e-4)
    for setting, found in temperatures.items():
        assert facts["temperatures"]["ts(z)"][setting] == pytest.approx(np.mean(found), rel=1e-4)
    assert facts["temperatures"]["ts(z)"][CORRECTED] < 0.95
    assert (facts["cases"], facts["folds"]) == (6, 3)


def test_a_single_network_needs_no_correction(run):
    scores = table(run)
    assert scores[CORRECTED, "ts(p0)", "nll"] == pytest.approx(scores[START, "ts(p0)", "nll"], rel=1e-5)


def test_what_is_done_is_kept_and_told(run, monkeypatch):
    monkeypatch.setattr(cross_validation, "fold_job", lambda *_: pytest.fail("it was done already"))
    study = CrossValidation(run / "calibration", display=False)
    facts = study.run(pipelines=["ts(z)", "ts(p0)"])
    told = study.tell(facts)
    assert len(told) == 3
    assert told[1].startswith("  ts(z): out of fold ")
    scores, changes = table(run), table(run, "changes")
    assert changes[START, "ts(z)", "nll"] == pytest.approx(
        scores[START, "ts(z)", "nll"] - scores[HELD_OUT, "ts(z)", "nll"]
    )
    page = build_report(run / "calibration", run / "outputs", run / "report").read_text(encoding="utf-8")
    assert "Calibrators fitted out of fold" in page
    assert (run / "report" / "studies" / "cross-validation.md").is_file()


def test_members_are_calibrated_by_their_own_features(run):
    store = OutputStore(run / "outputs")
    calibrator = build("fts_pooled", 4).eval()
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.add_(0.3)
    pool = MemberPool(StoredCases(store, "z"), calibrator)
    logits = store["case_003"].logits
    one_by_one = [calibrator(m[None], make_features(calibrator.feature_names, m[None], None)) for m in logits]
    torch.testing.assert_close(pool.scores("case_003", 2.0), torch.cat(one_by_one).mean(0) / 2)


def test_the_default_leaves_out_what_single_networks_cannot_fit(run):
    assert CrossValidation(run / "calibration", display=False).run()["pipelines"] == ["ts(z)", "ts(p0)"]


def test_what_cannot_be_compared_is_refused(run, tmp_path):
    study = CrossValidation(run / "calibration", display=False)
    with pytest.raises(StudyError, match=r"identity.z., lts_ti.z. cannot be fitted out of fold"):
        study.run(pipelines=["identity(z)", "lts_ti(z)", "ts(z)"])
    with pytest.raises(StudyError, match=r"there is no out-of-fold store at .*absent"):
        study.run(tmp_path / "absent")
    write_outputs(tmp_path / "plain", cases=2, members=1, prefix="other")
    with pytest.raises(StudyError, match=r"plain is not out of fold"):
        study.run(tmp_path / "plain")
    write_outputs(tmp_path / "same", cases=2, members=1, folds=2)
    with pytest.raises(StudyError, match=r"shares 2 cases with the run's outputs: case_000, case_001"):
        study.run(tmp_path / "same")
