"""The study of shifts: fits are reused, scores are those of a direct computation, stores are checked."""

import numpy as np
import pytest

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_rows
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.studies import shift
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.scores import ScoreRow
from lightning_calib.studies.shift import Shift
from tests.studies.conftest import noisy, write_changed
from tests.training import file_bytes


def table(folder, name):
    rows = read_rows(folder / "calibration" / "studies" / "shift" / name, ScoreRow)
    return {(row.setting, row.pipeline, row.metric): row for row in rows}


def numpy_nll(case, temperature):
    """Mean NLL of the mean logits divided by a temperature."""
    z = case.logits.numpy().astype(np.float64).mean(axis=0) / temperature
    log_probs = z - z.max(0) - np.log(np.exp(z - z.max(0)).sum(0))
    target = case.target.numpy()
    counted = target != 255
    picked = np.take_along_axis(log_probs, np.where(counted, target, 0)[None], axis=0)[0]
    return -picked[counted].mean()


def test_scores_on_changed_images_are_those_of_numpy(study, folder):
    store = OutputStore(folder / "outputs")
    changed = write_changed(store, folder / "outputs-strong", noisy)
    facts = study(Shift).run()
    assert list(facts["images"]) == ["strong"]
    results = Results(folder / "calibration")
    temperatures = [2.2 + 0.1 * repeat for repeat in results.repeats]
    found = table(folder, "scores.csv")
    for images, origin in (("clean", store), ("strong", changed)):
        means = [
            np.mean([numpy_nll(origin[case], temperature) for case in results.test_cases(repeat)])
            for repeat, temperature in enumerate(temperatures)
        ]
        assert found[images, "ts(z)", "nll"].mean == pytest.approx(np.mean(means), rel=1e-5)
    change = table(folder, "degradation.csv")["strong", "ts(z)", "nll"]
    assert change.mean == pytest.approx(found["strong", "ts(z)", "nll"].mean - found["clean", "ts(z)", "nll"].mean)
    assert 0 < change.low < change.mean < change.high
    assert found["strong", "cms_op(p)", "flip"].mean == 0 < found["strong", "ms(z)", "flip"].mean
    assert {c["family"] for c in facts["comparisons"]["strong"]} == {"translation invariance", "decision preservation"}


def test_the_same_images_change_nothing(study, folder):
    write_changed(OutputStore(folder / "outputs"), folder / "outputs-same", lambda logits, _: logits)
    study(Shift).run()
    assert all(row.mean == row.low == row.high == 0 for row in table(folder, "degradation.csv").values())
    clean, same = (
        Results(folder / "calibration"),
        Results(folder / "calibration" / "studies" / "shift" / "same"),
    )
    assert same.scores("cdc(p)", "ece")[1].tolist() == clean.scores("cdc(p)", "ece")[1].tolist()
    assert same.average_calibration_error(0, "ts(z)") == clean.average_calibration_error(0, "ts(z)")


def test_what_is_done_is_not_done_again(study, folder, monkeypatch):
    write_changed(OutputStore(folder / "outputs"), folder / "outputs-mild", noisy)
    study(Shift).run(pipelines="ts(z),ms(z)")
    before = file_bytes(folder / "calibration" / "studies")

    def refuse(*_):
        raise AssertionError("evaluated again")

    monkeypatch.setattr(shift, "shift_job", refuse)
    study(Shift).run(pipelines="ts(z),ms(z)")
    assert file_bytes(folder / "calibration" / "studies") == before
    with pytest.raises(StudyError, match="evaluated again"):
        study(Shift).run(pipelines="cms_op(p)")


def test_other_stores_are_refused(study, folder):
    store = OutputStore(folder / "outputs")
    with pytest.raises(StudyError, match=r"no stores of changed images.*train\.py predict --corruption mild"):
        study(Shift).run()
    fewer = write_changed(store, folder / "fewer", noisy, case_ids=store.case_ids[:3])
    with pytest.raises(StudyError, match=r"fewer \(x\) lacks \d+ test cases of the run: case_"):
        study(Shift).run({"x": fewer.path})
    strangers = write_changed(store, folder / "strangers", noisy, members=[Member(name) for name in "abc"])
    with pytest.raises(StudyError, match="was predicted by other networks"):
        study(Shift).run({"x": strangers.path})
    with pytest.raises(StudyError, match=r"dc\(z\): no fits in .*it has identity\(p0\)"):
        study(Shift).run(pipelines=["dc(z)"])
