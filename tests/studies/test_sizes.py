"""Numbers of calibration cases and of members: fits are reused, test cases stay, one member is one member."""

from dataclasses import replace

import pytest

from lightning_calib.experiment import jobs as running
from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_rows
from lightning_calib.functional.pooling import pool
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.partition import PartitionError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.studies import calibration_size
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.calibration_size import CalibrationSize
from lightning_calib.studies.ensemble_size import EnsembleSize
from lightning_calib.studies.scores import ScoreRow
from tests.experiment.synthetic import write_outputs
from tests.stores import write_store

NAMES = ["identity(p0)", "identity(z)", "ts(z)", "ms(z)"]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A real run: 12 cases, of which 4 calibrate and 2 validate."""
    folder = tmp_path_factory.mktemp("real")
    store = write_outputs(folder / "outputs", cases=12, members=2)
    place = folder / "calibration"
    how = {"repeats": 2, "trials": 2, "cal": 4, "val": 2, "selection": "paper"}
    experiment = Experiment(str(store.path), NAMES, calibration=place, **how)
    experiment.run(workers=0, display=False, logger=None)
    return folder


def study(real, kind):
    return kind(real / "calibration", display=False)


def rows_of(real, name, table):
    rows = read_rows(real / "calibration" / "studies" / name / table, ScoreRow)
    return {(row.setting, row.pipeline, row.metric): row for row in rows}


def counted(monkeypatch):
    """Fits that are really made."""
    fits, original = [], running.fit_job

    def fit_job(work, job):
        fits.append((work.root.name, job.pipeline, job.repeat))
        original(work, job)

    monkeypatch.setattr(running, "fit_job", fit_job)
    return fits


def test_other_numbers_of_cases_are_judged_on_the_same_test_cases(real, monkeypatch):
    fits = counted(monkeypatch)
    facts = study(real, CalibrationSize).run(sizes=[1, 4], pipelines="ts(z),ms(z)")
    assert (facts["settings"], facts["reference"], facts["failures"]) == ([1, 4], 4, [])
    assert {folder for folder, _, _ in fits} == {"n-1"}  # those of the reference are the run's own
    assert len(fits) == 4
    main, small = Results(real / "calibration"), Results(study(real, CalibrationSize).folder / "n-1")
    for repeat in main.repeats:
        assert small.split(repeat)["test"] == main.split(repeat)["test"]
        assert [len(small.split(repeat)[part]) for part in ("cal", "val")] == [1, 5]
    deltas = rows_of(real, "calibration_size", "deltas.csv")
    assert all((row.mean, row.low, row.high) == (0, 0, 0) for key, row in deltas.items() if key[0] == "4")
    scores = rows_of(real, "calibration_size", "scores.csv")
    difference = scores["1", "ts(z)", "nll"].mean - scores["4", "ts(z)", "nll"].mean
    assert deltas["1", "ts(z)", "nll"].mean == pytest.approx(difference)
    assert scores["4", "ms(z)", "ece"].mean == pytest.approx(
        main.summary["pipelines"]["ms(z)"]["metrics"]["ece"]["mean"]
    )
    study(real, CalibrationSize).run(sizes=[1, 4], pipelines="ts(z),ms(z)")
    assert len(fits) == 4  # nothing is fitted twice


def test_sizes_that_leave_a_part_empty_are_left_out_and_said(real, monkeypatch):
    split = Experiment.split

    def none_left(self, repeat):  # as where the only group that is left is larger than what is asked for
        if self.cal == 2:
            raise PartitionError("no case is left for cal")
        found = split(self, repeat)
        return replace(found, cal=found.cal + found.val, val=()) if self.cal == 1 else found

    monkeypatch.setattr(Experiment, "split", none_left)
    sized = study(real, CalibrationSize)
    facts = sized.run(pipelines="ts(z)")
    assert (facts["settings"], facts["left_out"]) == ([4], [1, 2])
    assert sized.tell(facts)[0].startswith("n = 1 was left out: some part would get no case")
    for size, part in ((1, "val"), (2, "cal")):
        with pytest.raises(StudyError, match=f"no case is left for {part}"):
            sized.run(sizes=[size], pipelines="ts(z)")


def test_impossible_numbers_are_refused(real):
    with pytest.raises(StudyError, match=r"sizes \[6\]: 6 cases are not for testing, of which cal can get 1 to 5"):
        study(real, CalibrationSize).run(sizes=[6])
    with pytest.raises(StudyError, match=r"members = \[3\]: the store .* has 2 members"):
        study(real, EnsembleSize).run(members=[3])


def test_an_ensemble_of_one_is_its_first_member(real, monkeypatch):
    fits = counted(monkeypatch)
    facts = study(real, EnsembleSize).run(pipelines="identity(z),ts(z)")
    assert facts["settings"] == [1, 2]
    assert {folder for folder, _, _ in fits} == {"members-1"}
    main, one = Results(real / "calibration"), Results(study(real, EnsembleSize).folder / "members-1")
    for repeat in main.repeats:
        for key in ("nll", "ece"):
            assert one.scores("identity(z)", key)[repeat].tolist() == main.scores("identity(p0)", key)[repeat].tolist()
    scores = rows_of(real, "ensemble_size", "scores.csv")
    assert scores["2", "ts(z)", "nll"].mean == pytest.approx(
        main.summary["pipelines"]["ts(z)"]["metrics"]["nll"]["mean"]
    )


@pytest.mark.parametrize("pooling", ["z", "p", "p0"])
def test_a_store_opens_as_a_smaller_ensemble(tmp_path, pooling):
    store = write_store(tmp_path / "outputs", cases=2, members=3)
    for members in (3, 2, 1):  # in turn: the cache must not mix them up
        smaller = OutputStore(store.path, members)
        assert smaller.manifest.num_members == members
        for case in store:
            expected = pool(case.logits[None, :members], pooling)[0]
            assert smaller[case.case_id].pooled(pooling).equal(expected)
            for _ in range(2):
                assert StoredCases(smaller, pooling).read(case.case_id)[0].equal(expected)
    with pytest.raises(StoreError, match=r"members = 4: .* has 3"):
        OutputStore(store.path, 4)
    pooled = write_store(tmp_path / "pooled", cases=2, members=3, keep="pooled")
    with pytest.raises(StoreError, match="keeps pooled logits alone"):
        OutputStore(pooled.path, 2)


def test_default_sizes_leave_out_what_is_nearly_the_runs_own():
    assert calibration_size.default_sizes(None, reference=50, available=450) == [5, 25, 50, 75, 100]
    assert calibration_size.default_sizes(None, reference=50, available=80) == [5, 25, 50]  # two thirds of 80 are 53
