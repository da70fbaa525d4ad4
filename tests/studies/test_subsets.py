"""Scores on subsets of the test cases, against numpy."""

import numpy as np
import pytest

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_rows
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.scores import ScoreRow
from lightning_calib.studies.subsets import Subsets


def test_means_and_gains_against_numpy(study, folder):
    results = Results(folder / "calibration")
    first = results.test_cases(0)[0]
    facts = study(Subsets).run({"one": first, "all": "*", "two": f"{first}, {results.test_cases(0)[1]}"})
    assert facts["cases"]["one"][0] == 1
    assert facts["cases"]["two"][0] == 2
    assert facts["cases"]["all"] == [len(results.test_cases(r)) for r in results.repeats]
    rows = {
        kind: {
            (r.setting, r.pipeline, r.metric): r
            for r in read_rows(folder / "calibration" / "studies" / "subsets" / f"{kind}.csv", ScoreRow)
        }
        for kind in ("scores", "gains")
    }
    for subset in ("one", "all"):
        for name in ("ms(z)", "cdc(p)"):
            plain = f"identity({name[-2]})"
            means, gains = [], []
            for r in results.repeats:
                kept = [c for c in results.cases_of(r, name) if subset == "all" or c.case == first]
                base = {c.case: c.score("nll") for c in results.cases_of(r, plain)}
                if kept:
                    means.append(np.mean([c.score("nll") for c in kept]))
                    gains.append(np.mean([c.score("nll") - base[c.case] for c in kept]))
            assert rows["scores"][subset, name, "nll"].mean == pytest.approx(np.mean(means))
            assert rows["gains"][subset, name, "nll"].mean == pytest.approx(np.mean(gains))
    assert ("all", "identity(z)", "nll") not in rows["gains"]
    row = rows["scores"]["all", "ms(z)", "nll"]
    assert row.low <= row.mean <= row.high


@pytest.mark.parametrize(("subsets", "told"), [({"night": "night*"}, "no test case matches 'night"), ({}, "--subsets")])
def test_subsets_without_cases_are_told(study, subsets, told):
    with pytest.raises(StudyError, match=told):
        study(Subsets).run(subsets)
