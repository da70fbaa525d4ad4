"""Curves and ACE with their uncertainty, against the tables of whole repeats and plain loops."""

import json

import numpy as np
import pytest

from lightning_calib.experiment import layout, reliability
from lightning_calib.experiment.reliability import ace_draws, reliability_curve
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.summary import leading, open_results, uncalibrated
from tests.experiment.synthetic import write_outputs, write_results

NAMES = ("identity(p)", "identity(z)", "ts(z)", "ms(z)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("reliability")
    store = write_outputs(root / "outputs", cases=24, ignore_index=255)
    return write_results(root / "calibration", store, pipelines=NAMES, repeats=2)


@pytest.fixture
def results(folder):
    return Results(folder)


def test_the_curve_is_that_of_all_voxels(results):
    curve = reliability_curve(results, "ts(z)")
    tables = [results.bin_table(r, "ts(z)", 15) for r in results.repeats]
    counts, correct, confidence = (sum(getattr(t, key) for t in tables) for key in ("voxels", "correct", "confidence"))
    np.testing.assert_allclose(curve.accuracy, (correct.double() / counts).numpy())
    np.testing.assert_allclose(curve.confidence, (confidence / counts).numpy())
    np.testing.assert_array_equal(curve.voxels, counts.numpy())
    np.testing.assert_allclose(curve.share, curve.voxels / curve.voxels.sum())
    held = curve.voxels > 200
    assert held.sum() > 5
    assert (curve.low[held] < curve.accuracy[held]).all()
    assert (curve.accuracy[held] < curve.high[held]).all()


def slow_ace(sums):
    """Mean gap over filled bins of a table (3, 15), bin by bin."""
    gaps = [abs(confidence - correct) / count for count, confidence, correct in sums.T if count]
    return sum(gaps) / len(gaps)


def test_replicates_of_ace_are_those_of_plain_loops(results):
    own, drawn = ace_draws(results, ["ts(z)", "ms(z)"])
    for column, name in enumerate(("ts(z)", "ms(z)")):
        expected = np.mean([results.average_calibration_error(r, name) for r in results.repeats])
        assert own[column] == pytest.approx(expected)
        assert drawn[:, column].mean() == pytest.approx(expected)
    rng, ids = np.random.default_rng(7), sorted({case for r in results.repeats for case in results.test_cases(r)})
    groups = sorted({results.groups.get(case, case) for case in ids})
    sums = [dict(zip(results.test_cases(r), results.case_bins(r, "ts(z)"), strict=True)) for r in results.repeats]
    slow = []
    for _ in range(2000):
        chosen = rng.choice(groups, len(groups))
        parts = []
        for repeat in rng.integers(len(sums), size=len(sums)):
            rows = [own for g in chosen for case, own in sums[repeat].items() if results.groups.get(case, case) == g]
            parts += [slow_ace(np.sum(rows, axis=0))] if rows else []
        slow.append(np.mean(parts))
    assert drawn[:, 0].std() == pytest.approx(np.std(slow), rel=0.1)


def test_replicates_of_ace_are_not_below_zero(results, monkeypatch):
    def biased(tables, *rest):  # every other replicate has not one correct voxel
        exact = np.stack([table.mean(axis=0) for table in tables])
        wrong = exact.reshape(len(tables), -1, 3, 15).copy()
        wrong[:, :, 2] = 0
        return np.stack([exact, wrong.reshape(exact.shape)], axis=1)

    monkeypatch.setattr(reliability, "clustered_means", biased)
    own, drawn = ace_draws(results, ["ts(z)"])
    assert drawn.max() - own > own  # moved down by as much, the other one would be below 0
    assert drawn.min() == 0


def test_classes_add_up(results):
    rows = results.classes(0, "ts(z)")
    counted = sum(row.voxels for row in results.cases_of(0, "ts(z)"))
    assert sum(row.voxels for row in rows) == sum(row.predicted for row in rows) == counted
    assert all(row.hits <= min(row.voxels, row.predicted) for row in rows)
    foreground = np.nanmean([row.dice for row in rows if row.label])
    assert foreground == pytest.approx(np.nanmean(results.scores("ts(z)", "dice")[0]), abs=0.05)
    table = results.class_bins("ts(z)")
    for label in range(4):
        mine = [row for r in results.repeats for row in results.classes(r, "ts(z)") if row.label == label]
        assert int(table.correct[label].sum()) == sum(row.voxels for row in mine)


def test_the_better_of_the_uncalibrated_is_what_has_to_be_beaten(results):
    nll = {name: np.mean([s.mean() for s in results.scores(name, "nll")]) for name in NAMES[:2]}
    assert uncalibrated(results) == min(nll, key=nll.get)


def test_what_leads_gains_and_is_close_to_the_best(results):
    found = leading(results, "identity(p)")
    metrics = {name: entry["metrics"] for name, entry in results.summary["pipelines"].items()}
    for key, names in found.items():
        sign = -1 if key in ("dice", "miou") else 1
        means = {name: sign * metrics[name][key]["mean"] for name in NAMES}
        assert min(means, key=means.get) in names
        assert all(means[name] < means["identity(p)"] for name in names)
    assert "ts(z)" in found["ece"]
    assert "identity(p)" not in {name for names in found.values() for name in names}
    assert leading(results, "identity(p0)") == {}


def test_results_of_earlier_versions_have_no_tables_of_cases(results):
    results._case_bins.clear()
    results._classes.clear()
    assert reliability_curve(results, "ts(z)") is None
    assert ace_draws(results, ["ts(z)"]) is None
    assert results.classes(0, "ts(z)") == []


def test_an_earlier_summary_is_computed_anew_and_left_as_it_is(folder):
    new = json.loads((folder / layout.SUMMARY).read_text(encoding="utf-8"))
    assert open_results(folder).summary == new
    old = {key: value for key, value in new.items() if key not in ("intervals", "leading", "uncalibrated")}
    text = json.dumps(old)
    (folder / layout.SUMMARY).write_text(text, encoding="utf-8")
    try:
        assert open_results(folder).summary == new
        assert (folder / layout.SUMMARY).read_text(encoding="utf-8") == text
    finally:
        (folder / layout.SUMMARY).write_text(json.dumps(new), encoding="utf-8")
