"""The recommendation looks at `val` alone and is honest about `test`."""

import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from lightning_calib.experiment import layout
from lightning_calib.experiment.advice import GroupAdvice, describe, describe_groups, selected_advice, stored_advice
from lightning_calib.experiment.recommend import eligible, recommend
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_cases, write_cases
from lightning_calib.experiment.statistics import Interval
from lightning_calib.kit.files import plain, read_json, write_json
from tests.experiment.synthetic import write_results


def test_eligible_pipelines_keep_what_is_asked(results):
    names = results.pipelines
    assert "ms(z)" not in eligible(names, "none")
    assert "ms(z)" in eligible(names, "none", translation_invariant=False)
    assert "lts(z)" not in eligible(names, "order")
    assert "cms_ap(p)" not in eligible(names, "order")
    assert "cms_ap(p)" in eligible(names, "argmax")
    assert not {"dc(z)", "cdc(p)"} & set(eligible(names, "argmax"))


@pytest.fixture
def own_results(outputs, tmp_path):
    """A run whose val figures a test may change."""
    return write_results(tmp_path / "calibration", outputs, ["identity(z)", "ts(z)", "cms_op(z)", "cms_ap(z)", "dc(z)"])


def set_val_nll(folder, name, values):
    for repeat, value in enumerate(values):
        path = layout.job_folder(folder, repeat, name) / layout.FIT
        write_json(path, read_json(path) | {"val_nll": value})


def test_val_decides_and_test_only_judges(own_results):
    set_val_nll(own_results, "identity(z)", [0.01, 0.01, 0.5])
    set_val_nll(own_results, "ts(z)", [0.1, 0.1, 0.1])
    found = recommend(Results(own_results), "order", replicates=500)
    assert found.pipeline == "ts(z)"  # mean .1 against .173
    assert found.chosen == ["identity(z)", "identity(z)", "ts(z)"]
    assert found.votes == 1
    assert found.best in ("ts(z)", "cms_op(z)")
    assert found.regret.mean > 0.02  # two repeats chose the worse identity
    assert list(found.val_nll) == ["ts(z)", "identity(z)", "cms_op(z)"]


def test_regret_is_the_honest_loss(own_results):
    results = Results(own_results)
    found = recommend(results, "order", replicates=500)
    own = [results.scores(name, "nll")[r].mean() for r, name in enumerate(found.chosen)]
    best = [part.mean() for part in results.scores(found.best, "nll")]
    assert found.regret.mean == pytest.approx(np.mean(own) - np.mean(best))
    assert found.best == min(found.val_nll, key=lambda n: np.mean([p.mean() for p in results.scores(n, "nll")]))


def test_noise_is_called_noise(own_results):
    """cms_ap and cms_op are set to the same map here; the identity is clearly worse."""
    set_val_nll(own_results, "cms_op(z)", [0.05] * 3)
    found = recommend(Results(own_results), "argmax", replicates=500)
    assert found.pipeline == "cms_op(z)"
    assert "cms_ap(z)" in found.within_noise
    assert "identity(z)" not in found.within_noise
    text = describe(found, 3)
    assert "Deploy cms_op(z)" in text
    assert "Within noise of it" in text
    assert "leaving the ensemble as it is" not in text


def test_a_choice_that_gains_nothing_is_told_so(own_results):
    """A temperature that val praises, with the test scores of no calibration at all."""
    set_val_nll(own_results, "ts(z)", [0.05] * 3)
    rows = read_cases(own_results / layout.CASES)
    plain = {(row.repeat, row.case): row.score("nll") for row in rows if row.pipeline == "identity(z)"}
    same = [
        replace(row, scores=row.scores | {"nll": plain[row.repeat, row.case]}) if row.pipeline == "ts(z)" else row
        for row in rows
    ]
    write_cases(own_results / layout.CASES, same)
    found = recommend(Results(own_results), "order", replicates=500)
    assert found.pipeline == "ts(z)"
    assert "no lower NLL than identity(z) beyond noise" in describe(found, 3)


def test_pipelines_with_gaps_are_not_recommended(broken_results):
    found = recommend(broken_results, "none", replicates=200)
    assert "dc(z)" not in found.val_nll
    with pytest.raises(ValueError, match="has results in all repeats"):
        recommend(_only(broken_results, "lts(z)"), "order")


def _only(results, name):
    narrowed = Results(results.folder)
    narrowed.settings = results.settings | {"pipelines": [name]}
    return narrowed


@pytest.mark.parametrize("preserve", ["order", "argmax", "none"])
def test_what_is_stored_is_what_is_computed(results, preserve):
    computed = recommend(results, preserve)
    stored, repeats = stored_advice(results.folder, preserve)
    assert repeats == 3
    assert plain(asdict(stored)) == plain(asdict(computed), digits=10)
    assert describe(stored, 3) == describe(computed, 3)


def test_advice_that_is_not_there_is_none(tmp_path):
    assert stored_advice(tmp_path, "order") is None
    write_json(tmp_path / layout.SUMMARY, {"recommendation": {"order": None}, "repeats": 3})
    assert stored_advice(tmp_path, "order") is None
    (tmp_path / layout.SUMMARY).write_text("{")
    assert stored_advice(tmp_path, "order") is None


def test_stored_advice_takes_no_torch(results):
    code = f"""
import sys
from lightning_calib.cli.calibrate import main
assert main(["recommend", "--calibration", {str(results.folder)!r}]) == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def advised(**changes) -> GroupAdvice:
    """Selection by groups that loses on one of two test groups."""
    facts = {"preserve": "order", "pipeline": "ts(p)", "strength": 0.1, "reason": "why", "level": "site", "groups": 9}
    facts |= {"chosen": ["ts(p)", "identity(p)"], "reasons": ["", ""], "gain": Interval(-0.01, -0.03, 0.002)}
    facts |= {"worst_group": "a", "worst_gain": -0.05, "loss_probability": 0.3, "by_group": {"a": -0.05, "b": 0.01}}
    return GroupAdvice(**(facts | changes))


def test_advice_by_groups_says_what_the_procedure_did():
    told = describe_groups(advised())
    assert told.startswith(
        "Deploy ts(p): on groups that it had not seen the selection LOSES 0.0100 NLL [-0.0020, 0.0300]"
    )
    assert "1 of 2 groups gain; the worst, a, by -0.0500; probability that a new group loses: 30 %." in told
    assert "Chosen in the repeats: ts(p) (1), identity(p) (1)." in told
    assert "on test cases the selection saves 0.0100 NLL" in describe_groups(
        advised(unseen=False, gain=Interval(0.01, 0.0, 0.02))
    )
    assert "no test case has judged this choice" in describe_groups(advised(chosen=["identity(p)"] * 2))
    kept = describe_groups(advised(pipeline="identity(p)", reason="too few groups to tell (3; at least 5 needed)"))
    assert kept.startswith("Leave the ensemble as it is: too few groups to tell (3; at least 5 needed).")


def test_advice_by_groups_is_read_from_the_summary():
    found = advised(scores={"nll": {"before": Interval(1, 1, 1), "after": Interval(2, 2, 2)}})
    assert selected_advice({"selection": {"order": asdict(found)}}, "order") == found
    assert selected_advice({"selection": None}, "order") is None
    with pytest.raises(ValueError, match="is missing or failed"):
        selected_advice({"selection": {"order": None}}, "order")
