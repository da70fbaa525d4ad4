"""Promises of `val` and what `test` brought, against the files themselves."""

import csv
import json
from collections import defaultdict

import pytest

from lightning_calib.experiment import layout
from lightning_calib.experiment.rows import read_rows
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.selection import Selection, SelectionRow


def pooled(folder):
    """NLL over all test voxels by repeat and pipeline, by hand."""
    total, voxels = defaultdict(float), defaultdict(int)
    with (folder / "calibration" / layout.CASES).open() as file:
        for row in csv.DictReader(file):
            key = int(row["repeat"]), row["pipeline"]
            total[key] += float(row["nll"]) * int(row["voxels"])
            voxels[key] += int(row["voxels"])
    return {key: value / voxels[key] for key, value in total.items()}


def edit_fit(folder, repeat, name, **changes):
    path = layout.job_folder(folder / "calibration", repeat, name) / layout.FIT
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_rows_are_those_of_the_files(study, folder):
    edit_fit(folder, 1, "ms(z)", val_nll=0.4, identity_val_nll=0.7, hyperparameters={"lam": 0.5, "mu": 0.25})
    facts = study(Selection).run("ms(z),cdc(p)")
    rows = {
        (row.repeat, row.pipeline): row
        for row in read_rows(folder / "calibration" / "studies" / "selection" / "selection.csv", SelectionRow)
    }
    assert set(rows) == {(r, name) for r in (0, 1) for name in ("ms(z)", "cdc(p)")}
    assert rows[1, "ms(z)"].promised == pytest.approx(-0.3)
    assert (rows[1, "ms(z)"].lam, rows[1, "ms(z)"].mu) == (0.5, 0.25)
    nll = pooled(folder)
    for (repeat, name), row in rows.items():
        assert row.brought == pytest.approx(nll[repeat, name] - nll[repeat, f"identity({name[-2]})"])
    told = {entry["pipeline"]: entry for entry in facts["pipelines"]}
    assert told["ms(z)"]["promised"] == pytest.approx((rows[0, "ms(z)"].promised - 0.3) / 2)
    assert told["ms(z)"]["lost"] == sum(nll[r, "ms(z)"] > nll[r, "identity(z)"] for r in (0, 1))


def test_broken_promises_are_counted(study, folder):
    """A pipeline that is worse on test than none, whatever val said."""
    path = folder / "calibration" / layout.CASES
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["pipeline"] == "ts(z)" and row["repeat"] == "1":
            row["nll"] = str(float(row["nll"]) + 100)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (told,) = study(Selection).run("ts(z)")["pipelines"]
    assert told["lost"] == 1
    assert told["promised"] < 0 < told["brought"] < told["worst"]


def test_without_a_baseline_there_is_nothing_to_say(study, folder):
    settings = folder / "calibration" / layout.SETTINGS
    changed = json.loads(settings.read_text())
    changed["pipelines"] = ["ms(z)"]
    settings.write_text(json.dumps(changed))
    path = folder / "calibration" / layout.CASES
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(line for line in lines if "identity" not in line)]) + "\n")
    with pytest.raises(StudyError, match="no calibrated pipeline beside the uncalibrated one"):
        study(Selection).run()
