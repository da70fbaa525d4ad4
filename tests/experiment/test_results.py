"""Results come back as they were written, and broken ones are named."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.experiment import layout
from lightning_calib.experiment.records import add_timing, evaluation_done, fit_done, write_failed_fit
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import BandRow, CaseRow, read_cases, read_rows, write_cases, write_rows
from lightning_calib.kit.files import FileError, plain, read_json, write_json
from lightning_calib.metrics.score import SCORES
from tests.experiment.synthetic import write_results

FLOATS = st.floats(allow_nan=False)


@given(values=st.lists(st.tuples(FLOATS, FLOATS, st.integers(0, 2**62)), max_size=5))
def test_rows_read_back_to_the_bit(values, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "bands.csv"
    rows = [BandRow(0, "cms_op(p)", 'a "case", odd\nname', 3, n, a, n, b) for a, b, n in values]
    write_rows(path, rows, BandRow)
    assert read_rows(path, BandRow) == rows


def case_row(**scores):
    flips = {"harmful": 1, "beneficial": 2, "neutral": 3}
    return CaseRow("d", 0, "ts(z)", 'a "case"', 7, scores, flips)


def test_case_rows_read_back_whatever_their_scores(tmp_path):
    rows = [case_row(nll=0.1, dice=math.nan, flip=1 / 3, my_score=2.0), case_row(nll=0.2, dice=0.5, flip=0.0)]
    write_cases(tmp_path / "cases.csv", rows)
    found = read_cases(tmp_path / "cases.csv")
    assert [row.scores["nll"] for row in found] == [0.1, 0.2]
    assert math.isnan(found[0].score("dice"))
    assert math.isnan(found[1].score("my_score"))
    assert found[0].score("flip") == 1 / 3
    assert math.isnan(found[0].score("unheard_of"))
    assert found[0].flips == rows[0].flips
    assert (found[0].case, found[0].voxels) == ('a "case"', 7)


def test_case_rows_of_the_first_release_are_read(tmp_path):
    header = "dataset,repeat,pipeline,case,voxels,nll,dice,ece,ba_ece,brier,flip,harmful,beneficial,neutral"
    (tmp_path / "cases.csv").write_text(f"{header}\nd,1,ts(z),a,10,0.5,0.25,0.1,0.2,0.3,0.4,1,2,3\n")
    (row,) = read_cases(tmp_path / "cases.csv")
    assert row == CaseRow(
        "d",
        1,
        "ts(z)",
        "a",
        10,
        {"nll": 0.5, "dice": 0.25, "ece": 0.1, "ba_ece": 0.2, "brier": 0.3, "flip": 0.4},
        {"harmful": 1, "beneficial": 2, "neutral": 3},
    )


def test_foreign_and_damaged_tables_are_refused(tmp_path):
    path = tmp_path / "cases.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"cases\.csv has the columns"):
        read_cases(path)
    with pytest.raises(ValueError, match=r"cases\.csv has the columns"):
        read_rows(path, BandRow)
    write_cases(path, [case_row(nll=0.1)])
    with path.open("a") as file:
        file.write("d,zero,ts(z),a,1,1,0,0,0\n")
    with pytest.raises(ValueError, match=r"line 3: .*zero"):
        read_cases(path)


def test_json_holds_no_nan():
    text = json.dumps(plain({"a": [math.nan, math.inf, 0.1 + 0.2], "b": (1, "x", None, True)}))
    assert json.loads(text) == {"a": [None, None, 0.1 + 0.2], "b": [1, "x", None, True]}


def test_typed_access(results):
    assert len(results.pipelines) == 19
    assert results.repeats == (0, 1, 2)
    assert len(results.cases()) == 3 * 19 * 8
    assert [row.case for row in results.cases_of(1, "ts(z)")] == list(results.test_cases(1))
    assert [len(part) for part in results.scores("ts(z)", "nll")] == [8, 8, 8]
    assert results.calibrator(0, "cms_op(p)").name == "cms_op"
    assert results.curve(0, "ts(z)")[0].quantity == "val_nll"
    assert results.timing(0, "ts(z)") == {"fit": 1.25, "evaluate": 0.5}
    assert results.failures == results.missing == []


def test_tables_agree_with_each_other(results):
    """Bins and bands hold the voxels of the cases, and the bands give the cases' BA-ECE."""
    rows = results.cases_of(2, "cdc(z)")
    bins, bands = results.bin_table(2, "cdc(z)"), results.band_table(2, "cdc(z)")
    assert bins.voxels.sum() == sum(row.voxels for row in rows)
    torch.testing.assert_close(bands.error(), torch.tensor([row.score("ba_ece") for row in rows], dtype=torch.float64))
    assert results.bin_table(2, "cdc(z)", 15).voxels.shape == (15,)


def test_the_same_run_gives_the_same_bytes(outputs, tmp_path):
    one, two = (write_results(tmp_path / name, outputs, ["identity(z)", "ms(z)", "dc(z)"]) for name in "ab")
    for name in (layout.CASES, layout.BINS, layout.BANDS, layout.SUMMARY):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_failures_and_gaps_are_named(broken_results):
    assert len(broken_results.failures) == 4
    assert broken_results.failures[0].error.startswith("RuntimeError")
    assert (1, "dc(z)") in broken_results.missing
    assert broken_results.cases_of(1, "dc(z)") == []
    assert broken_results.calibrator(1, "dc(z)") is None
    assert math.isnan(broken_results.average_calibration_error(0, "lts(z)"))
    summary = broken_results.summary
    assert "lts(z)" not in summary["pipelines"]
    assert summary["pipelines"]["dc(z)"]["repeats"] == [0, 2]
    assert {(c["reference"], c["candidate"]) for c in summary["comparisons"]} >= {("ms(z)", "dc(z)")}
    assert all("lts" not in c["reference"] for c in summary["comparisons"])
    assert len(summary["failures"]) == 4


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(layout.ResultsError, match=r"settings\.json is missing"):
        Results(tmp_path)
    write_json(tmp_path / layout.SETTINGS, {"format_version": 99})
    with pytest.raises(layout.ResultsError, match="format version 99"):
        Results(tmp_path)
    write_json(tmp_path / layout.SETTINGS, {"format_version": layout.RESULTS_VERSION})
    with pytest.raises(FileError, match=r"settings\.json lacks pipelines"):
        Results(tmp_path)
    asked = {"pipelines": ["ts(z)"], "repeats": 1, "seed": 0, "dataset": {}, "bands": [0, None]}
    write_json(tmp_path / layout.SETTINGS, {"format_version": layout.RESULTS_VERSION} | asked)
    with pytest.raises(layout.ResultsError, match="has not finished"):
        _ = Results(tmp_path).summary
    (tmp_path / layout.SETTINGS).write_text("{")
    with pytest.raises(FileError, match="is not JSON"):
        Results(tmp_path)


def test_done_means_done_with_the_same_settings(results, tmp_path):
    folder = results.job_folder(0, "ts(z)")
    assert fit_done(folder, "synthetic")
    assert not fit_done(folder, "other")
    assert evaluation_done(folder, "synthetic")
    assert not evaluation_done(folder, "other")
    write_failed_fit(tmp_path, 0, "ts(z)", "synthetic", "broken")
    assert not fit_done(tmp_path, "synthetic")


def test_times_are_added_up_in_their_own_file(tmp_path):
    add_timing(tmp_path, fit=1.0)
    add_timing(tmp_path, evaluate=2.0)
    assert read_json(tmp_path / layout.TIMING) == {"fit": 1.0, "evaluate": 2.0}


def test_frames_hold_what_the_summary_says(results):
    table = results.table().set_index("pipeline")
    assert list(table.index) == list(results.pipelines)
    for key in SCORES:
        expected = results.summary["pipelines"]["ms(z)"]["metrics"][key]["mean"]
        assert table.loc["ms(z)", key] == pytest.approx(expected, nan_ok=True)
    cases = results.cases()
    own = cases[(cases.pipeline == "ms(z)") & (cases.repeat == 1)]
    assert own.nll.tolist() == results.scores("ms(z)", "nll")[1].tolist()
    assert len(results.comparisons()) == 28
    trials = results.all_trials()
    assert len(trials) == 3 * 19 * 4
    assert {"repeat", "pipeline", "val_nll", "lam", "mu"} <= set(trials.columns)


def test_results_of_the_first_release_have_their_pooled_errors(results, tmp_path):
    shutil.copytree(results.folder, tmp_path / "old")
    for path in (tmp_path / "old").rglob(layout.POOLED):
        path.unlink()
    old = Results(tmp_path / "old")
    assert old.pooled(0, "ms(z)", "ace") == pytest.approx(results.pooled(0, "ms(z)", "ace"), rel=1e-12)
    assert old.pooled(0, "ms(z)", "mce") == pytest.approx(results.pooled(0, "ms(z)", "mce"), rel=1e-12)
    assert math.isnan(old.pooled(0, "ms(z)", "miou"))
    assert [score.key for score in old.pooled_scores] == ["ace", "mce"]


def test_the_folder_above_will_do(results):
    assert Results(results.folder.parent).folder == results.folder


def test_the_summary_states_the_means(results):
    entry = results.summary["pipelines"]["ms(z)"]
    scores = results.scores("ms(z)", "nll")
    assert entry["metrics"]["nll"]["mean"] == pytest.approx(np.mean([part.mean() for part in scores]))
    assert entry["metrics"]["nll"]["low"] < entry["metrics"]["nll"]["mean"] < entry["metrics"]["nll"]["high"]
    aces = [results.average_calibration_error(r, "ms(z)") for r in results.repeats]
    ace = entry["metrics"]["ace"]
    assert [ace[key] for key in ("mean", "min", "max")] == pytest.approx([np.mean(aces), min(aces), max(aces)])
    assert ace["low"] < ace["mean"] < ace["high"]
    assert (entry["block"], entry["translation_invariant"], entry["preserves"]) == ("b", False, None)
    assert (entry["num_optimized"], entry["num_identifiable"]) == (20, 15)
    assert len(results.summary["comparisons"]) == 28
