"""The paper's claims on results whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_calib.calibrators.pipeline import expand_pipelines
from lightning_calib.experiment import layout
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_cases, read_rows, write_cases
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.claims import CLAIMS, ClaimRow, Claims, outcome_of


def edit(folder, **changes):
    """Set scores of pipelines to another pipeline's plus a constant: ``{"ms(z)": ("dice", "identity(z)", -0.1)}``."""
    path = folder / "calibration" / layout.CASES
    rows = read_cases(path)
    found = {(row.repeat, row.case, row.pipeline): row for row in rows}
    edited = []
    for row in rows:
        for metric, other, shift in changes.get(row.pipeline, ()):
            changed = found[row.repeat, row.case, other].scores[metric] + shift
            row = replace(row, scores=row.scores | {metric: changed})
        edited.append(row)
    write_cases(path, edited)


def claim(facts, key):
    return next(entry for entry in facts["claims"] if entry["key"] == key)


def test_known_answers(study, folder):
    edit(
        folder,
        **{
            "identity(p)": [("dice", "identity(p0)", 0.05)],
            "identity(z)": [("dice", "identity(p0)", -0.05)],
            "ms(z)": [("dice", "identity(p0)", -0.15)],
            "ms_c(z)": [("dice", "identity(p0)", -0.25)],
            "cms_op(p)": [("nll", "cdc(p)", 0.3), ("ece", "cdc(p)", 0.0), ("ba_ece", "cdc(p)", -0.1)],
        },
    )
    facts = study(Claims).run()
    assert claim(facts, "ensembles segment better")["outcome"] == "mixed"
    dice = claim(facts, "affine calibration costs Dice")
    assert dice["counts"]["seen"] >= 2
    free = claim(facts, "preservation is free")
    assert (free["outcome"], free["counts"]["opposite"], free["clearly_better"]) == ("mixed", 1, 1)
    assert "preservation costs in binary tasks" not in [entry["key"] for entry in facts["claims"]]  # four classes


def test_rows_against_numpy(study, folder):
    study(Claims).run()
    results = Results(folder / "calibration")
    rows = read_rows(folder / "calibration" / "studies" / "claims" / "claims.csv", ClaimRow)
    assert {(row.reference, row.candidate) for row in rows} >= {("ms(z)", "ms_c(z)"), ("cdc(p)", "cms_op(p)")}
    for row in rows:
        before = [[c.score(row.metric) for c in results.cases_of(r, row.reference)] for r in results.repeats]
        after = [[c.score(row.metric) for c in results.cases_of(r, row.candidate)] for r in results.repeats]
        assert row.difference == pytest.approx(np.mean(np.array(after) - np.array(before)), abs=1e-12)
        assert row.low <= row.high


def test_what_is_best(study, folder):
    best = study(Claims).run()["best"]
    entries = Results(folder / "calibration").summary["pipelines"]
    for metric, name in best.items():
        assert not name.startswith("identity")
        others = [e["metrics"][metric]["mean"] for n, e in entries.items() if not n.startswith("identity")]
        assert entries[name]["metrics"][metric]["mean"] == min(others)


def test_a_run_without_the_pairs_is_told(study, folder):
    rows = read_cases(folder / "calibration" / layout.CASES)
    write_cases(folder / "calibration" / layout.CASES, [r for r in rows if r.pipeline == "ts(z)"])
    with pytest.raises(StudyError, match="--pipelines paper"):
        study(Claims).run()


@pytest.mark.parametrize("expected", ["better", "worse"])
def test_outcomes(expected):
    assert outcome_of(expected, expected) == "seen"
    assert outcome_of(expected, "within noise") == "not seen"
    assert outcome_of(expected, {"better": "worse", "worse": "better"}[expected]) == "opposite"


def test_claims_are_about_pipelines_of_the_paper():
    paper = {str(name) for name in expand_pipelines(["paper"])}
    assert {name for claim in CLAIMS for pair in claim.pairs for name in pair} <= paper
