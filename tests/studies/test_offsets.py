"""Offsets against numpy, and what a store cannot answer."""

import numpy as np
import pytest

from lightning_calib.experiment.rows import read_rows
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.offsets import OffsetRow, Offsets
from tests.experiment.synthetic import write_results
from tests.stores import write_store


def numpy_spread(case, members):
    z = case.logits.numpy().astype(np.float64)[:members].mean(axis=0)
    energy = z.max(0) + np.log(np.exp(z - z.max(0)).sum(0))
    counted = case.target.numpy() != 255
    doubtful = counted & (np.exp(z.max(0) - energy) < 0.99)
    return energy[counted].std(), energy[doubtful].std()


def test_offsets_are_those_of_numpy(study, folder):
    facts = study(Offsets).run()
    store = study(Offsets).store
    rows = read_rows(folder / "calibration" / "studies" / "offsets" / "cases.csv", OffsetRow)
    assert len(rows) == 3 * len(store)
    for row in rows:
        assert (row.spread, row.in_doubt) == pytest.approx(numpy_spread(store[row.case], row.members), rel=1e-5)
    for entry in facts["summary"]:
        values, doubtful = zip(*(numpy_spread(case, entry["members"]) for case in store), strict=True)
        assert entry["in_doubt"] == pytest.approx(np.mean(doubtful), rel=1e-5)
        assert entry["mean"] == pytest.approx(np.mean(values), rel=1e-5)
        quartiles = np.percentile(values, (25, 50, 75))
        assert [entry[key] for key in ("p25", "p50", "p75")] == pytest.approx(quartiles, rel=1e-5)


def test_sizes_and_cases_can_be_chosen(study):
    facts = study(Offsets).run(members=[3, 1], cases=4)
    assert (facts["members"], facts["cases"]) == ([1, 3], 4)
    with pytest.raises(StudyError, match=r"members = \[7\]: the store .* has 3 members"):
        study(Offsets).run(members=[7])


def test_a_store_of_pooled_logits_answers_for_the_whole_ensemble_alone(tmp_path):
    store = write_store(tmp_path / "outputs", cases=6, keep="pooled")
    write_results(tmp_path / "calibration", store, ["identity(z)"], repeats=1)
    study = Offsets(tmp_path / "calibration", display=False)
    assert [entry["members"] for entry in study.run()["summary"]] == [2]
    with pytest.raises(StudyError, match=r"keeps pooled logits alone.*--outputs.keep members"):
        study.run(members=[1])
