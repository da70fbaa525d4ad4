"""Binning against a direct recomputation, and Kendall's tau against its definition."""

import shutil
from itertools import combinations

import numpy as np
import pytest
import torch

from lightning_calib.executors.local import LocalExecutor
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_rows
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.bins import BinningRow, Bins, EceRow, rank_stability
from tests.training import file_bytes


def direct_ece(log_probs, target, bins):
    """Every voxel put into its bin by hand."""
    counted = target != 255
    probs = np.exp(log_probs.double().numpy())
    confidence, right = probs.max(0)[counted], (probs.argmax(0) == target)[counted]
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(right[index == k].sum() - confidence[index == k].sum()) for k in range(bins)]
    return sum(gaps) / counted.sum()


def test_ece_is_that_of_a_direct_recomputation(study, folder):
    facts = study(Bins).run()
    assert facts["pipelines"] == ["ms(z)", "ms_c(z)", "ts(z)"]  # those of the paper's subset that the run has
    rows = read_rows(folder / "calibration" / "studies" / "bins" / "cases.csv", EceRow)
    results, store = Results(folder / "calibration"), study(Bins).store
    for row in rows[::17]:
        calibrator = results.calibrator(row.repeat, row.pipeline).eval()
        with torch.no_grad():
            log_probs = calibrator(store[row.case].pooled("z")[None])[0]
        assert row.ece == pytest.approx(direct_ece(log_probs, store[row.case].target.numpy(), row.bins), rel=1e-6)
    main = {(r.repeat, r.pipeline, r.case): r.ece for r in results.cases().itertuples()}
    for row in (row for row in rows if row.bins == 50):
        assert row.ece == pytest.approx(main[row.repeat, row.pipeline, row.case], rel=1e-6)


def test_ace_at_15_bins_is_that_of_the_main_results(study, folder):
    study(Bins).run(pipelines="cdc(p),ts(z)", ace_bins=(15, 60))
    rows = read_rows(folder / "calibration" / "studies" / "bins" / "bins.csv", BinningRow)
    results = Results(folder / "calibration")
    for row in rows:
        if (row.metric, row.bins) == ("ace", 15):
            values = [results.average_calibration_error(r, row.pipeline) for r in results.repeats]
            assert (row.mean, row.low, row.high) == (np.mean(values), min(values), max(values))
    with pytest.raises(StudyError, match=r"\[7\] bins .* divisors of 600"):
        study(Bins).run(ece_bins=[7])


def test_workers_leave_the_same_files(study, folder):
    here = study(Bins)
    there = Bins(here.calibration, here.outputs, LocalExecutor(1), display=False)
    here.run(pipelines="ts(z)")
    before = file_bytes(here.folder)
    shutil.rmtree(here.folder)
    there.run(pipelines="ts(z)")
    assert file_bytes(there.folder) == before


def rows_of(values, width=0.0):
    """ECE of three pipelines at several numbers of bins."""
    return [
        BinningRow("ece", bins, name, mean, mean - width, mean + width)
        for bins, means in values.items()
        for name, mean in zip(["a(z)", "b(z)", "c(z)"], means, strict=True)
    ]


def test_kendalls_tau_counts_pairs():
    values = {20: (1.0, 2.0, 3.0), 50: (1.0, 3.0, 2.0), 30: (3.0, 2.0, 1.0)}
    found = rank_stability(rows_of(values), "ece")

    def tau(first, second):
        signs = [np.sign((first[i] - first[j]) * (second[i] - second[j])) for i, j in combinations(range(3), 2)]
        return sum(signs) / len(signs)

    assert found.reference == 50
    assert found.tau == {bins: pytest.approx(tau(means, values[50])) for bins, means in values.items()}
    assert found.smallest_tau == pytest.approx(-1)
    assert len(found.swapped) == 3
    assert found.verdict.startswith("not stable: 3 pairs")


def test_verdicts():
    steady = {20: (1.0, 2.0, 3.0), 50: (1.1, 2.1, 3.1)}
    assert rank_stability(rows_of(steady), "ece").verdict == "stable: no two pipelines change places"
    swap = {20: (1.0, 2.0, 2.1), 50: (1.0, 2.1, 2.0)}
    assert rank_stability(rows_of(swap, width=0.2), "ece").verdict.startswith("stable within noise: 1 pair")
    assert rank_stability(rows_of(swap, width=0.01), "ece").verdict.startswith("not stable: 1 pair")
