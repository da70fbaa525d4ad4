"""Flips by band: numpy, the run's own counts, and a run that flips nothing."""

import numpy as np
import pytest
import torch

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_rows
from lightning_calib.functional import boundary_distance
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.sections.curves import contrasted, mean_ace
from lightning_calib.studies.flips import BandFlips, FlipRow, Flips
from lightning_calib.studies.reliability import CurveBin, Reliability


def test_bands_add_up_to_the_runs_own_audit(study, folder):
    facts = study(Flips).run()
    assert facts["pipelines"] == ["ms(z)", "ms_c(z)", "cdc(p)"]
    rows = read_rows(folder / "calibration" / "studies" / "flips" / "cases.csv", FlipRow)
    results = Results(folder / "calibration")
    for name in facts["pipelines"]:
        for kind in ("harmful", "beneficial", "neutral"):
            expected = sum(row.flips[kind] for r in results.repeats for row in results.cases_of(r, name))
            assert facts["audit"][name][kind] == expected == sum(getattr(r, kind) for r in rows if r.pipeline == name)
    worst = facts["audit"]["ms(z)"]["worst"]
    by_case = {
        (row.repeat, row.case): row.score("flip") * row.voxels for r in (0, 1) for row in results.cases_of(r, "ms(z)")
    }
    assert by_case[worst[0]["repeat"], worst[0]["case"]] == max(by_case.values())


def test_a_case_by_hand(study, folder):
    study(Flips).run(pipelines="ms(z)")
    rows = read_rows(folder / "calibration" / "studies" / "flips" / "cases.csv", FlipRow)
    results, store = Results(folder / "calibration"), study(Flips).store
    name = rows[0].case
    pooled, target = store[name].pooled("z"), store[name].target.numpy()
    with torch.no_grad():
        after = results.calibrator(rows[0].repeat, "ms(z)")(pooled[None])[0].argmax(0).numpy()
    before = pooled.argmax(0).numpy()
    distance = boundary_distance(store[name].target[None], 255)[0].numpy()
    for row in (r for r in rows if (r.case, r.repeat) == (name, rows[0].repeat)):
        low, high = [(0, 3), (3, 7), (7, 15), (15, np.inf)][row.band]
        inside = (target != 255) & (distance >= low) & (distance < high)
        flipped = inside & (before != after)
        harmful, beneficial = flipped & (before == target), flipped & (after == target)
        assert (row.voxels, row.harmful, row.beneficial) == (inside.sum(), harmful.sum(), beneficial.sum())
        assert row.flips == flipped.sum()


def test_rates_and_shares(study, folder):
    study(Flips).run()
    rows = read_rows(folder / "calibration" / "studies" / "flips" / "bands.csv", BandFlips)
    for name in ("ms(z)", "cdc(p)"):
        own = [row for row in rows if row.pipeline == name]
        assert sum(row.share_of_voxels for row in own) == pytest.approx(1)
        assert sum(row.share_of_flips for row in own) == pytest.approx(1)
        assert all(row.low <= row.rate <= row.high for row in own)


def test_a_run_without_flips_says_so(study, folder):
    facts = study(Flips).run(pipelines="cms_op(p)")
    assert facts["audit"]["cms_op(p)"]["worst"] == []
    assert read_rows(folder / "calibration" / "studies" / "flips" / "bands.csv", BandFlips)[0].rate == 0


def test_the_papers_curves(study, folder):
    results = Results(folder / "calibration")
    calibrated = ["ms(z)", "ms_c(z)", "lts_ti(z)", "cdc(p)", "cms_op(p)", "ts(z)"]
    best = min(calibrated, key=lambda name: mean_ace(results, name))
    keeping = min(["lts_ti(z)", "cms_op(p)", "ts(z)"], key=lambda name: mean_ace(results, name))
    chosen = {role: name for name, role in contrasted(Inputs(results, None)).items()}
    assert chosen["single model"] == "identity(p0)"
    assert chosen["lowest ACE"] == best
    assert chosen["uncalibrated ensemble"] == f"identity({best[-2]})"
    assert chosen.get("lowest ACE, order preserving", best) == keeping
    facts = study(Reliability).run()
    rows = read_rows(folder / "calibration" / "studies" / "reliability" / "curves.csv", CurveBin)
    for entry in facts["curves"]:
        own = [row for row in rows if row.role == entry["role"]]
        table = sum(results.bin_table(r, entry["pipeline"], 15).voxels for r in results.repeats)
        assert {row.bin: row.voxels for row in own} == {k: n for k, n in enumerate(table.tolist()) if n}
        assert all(row.bin / 15 <= row.confidence <= (row.bin + 1) / 15 for row in own)
