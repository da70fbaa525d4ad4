"""`calibrate.py show`, and `compare` as it was called: chosen pairs with intervals and verdicts."""

import csv
import json
from collections import defaultdict

import numpy as np
import pytest

from lightning_calib.cli.calibrate import main
from tests.experiment.synthetic import write_outputs, write_results

PIPELINES = ["identity(p)", "identity(z)", "ms(z)", "ts(z)", "cms_op(p)"]


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    write_results(folder / "calibration", write_outputs(folder / "outputs", cases=9), PIPELINES, repeats=2)
    return folder / "calibration"


def compared(calibration, capsys, *options):
    assert main(["compare", "--calibration", str(calibration), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def mean_difference(calibration, reference, candidate, metric):
    """Mean over repeats of the mean over cases, from the file itself."""
    held = defaultdict(dict)
    with (calibration / "cases.csv").open() as file:
        for row in csv.DictReader(file):
            held[row["repeat"], row["pipeline"]][row["case"]] = float(row[metric])
    repeats = sorted({repeat for repeat, _ in held})
    return np.mean(
        [np.mean([held[r, candidate][case] - value for case, value in held[r, reference].items()]) for r in repeats]
    )


def test_without_a_reference_it_is_the_ensemble_pooled_alike(calibration, capsys):
    found = compared(calibration, capsys)
    pairs = {(entry["reference"], entry["candidate"]) for entry in found}
    assert pairs == {("identity(z)", "ms(z)"), ("identity(z)", "ts(z)"), ("identity(p)", "cms_op(p)")}
    assert [entry["metric"] for entry in found[:4]] == ["nll", "dice", "ece", "ba_ece"]
    for entry in found:
        expected = mean_difference(calibration, entry["reference"], entry["candidate"], entry["metric"])
        assert entry["difference"]["mean"] == pytest.approx(expected, abs=1e-9)
        assert entry["two_level"]["low"] <= entry["difference"]["mean"] <= entry["two_level"]["high"]


def test_the_correction_covers_what_was_asked_for(calibration, capsys):
    (alone,) = compared(calibration, capsys, "--candidates", "ts(z)", "--metrics", "[nll]")
    assert alone["p_holm"] == alone["p_value"]
    several = compared(
        calibration, capsys, "--candidates", "ts(z), cms_op(p)", "--reference", "ms(z)", "--metrics", "[nll]"
    )
    assert [entry["reference"] for entry in several] == ["ms(z)", "ms(z)"]
    first = min(several, key=lambda entry: entry["p_value"])
    assert first["p_holm"] == pytest.approx(min(1, 2 * first["p_value"]))


def test_it_prints_a_table(calibration, capsys):
    assert main(["compare", "--calibration", str(calibration), "--candidates", "ts(z)"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| reference → candidate | metric |")
    assert sum(line.startswith("| identity(z) → ts(z) |") for line in lines) == 4


def test_what_the_run_does_not_have_is_named(calibration, capsys):
    assert main(["compare", "--calibration", str(calibration), "--candidates", "dc(z)"]) == 2
    assert "dc(z): not in" in capsys.readouterr().err
    assert main(["compare", "--calibration", str(calibration), "--reference", "lts(z)"]) == 2
    assert "choose another --reference" in capsys.readouterr().err
    assert main(["compare", "--calibration", str(calibration), "--candidates", "identity(z)"]) == 2
    assert "no two of these pipelines" in capsys.readouterr().err


def test_show_has_scores_recommendation_and_comparisons(calibration, capsys):
    line = ["show", "--calibration", str(calibration)]
    assert main(line) == 0
    plain = capsys.readouterr().out
    assert [text.split()[0] for text in plain.splitlines()[1 : 1 + len(PIPELINES)]] == PIPELINES
    assert plain.splitlines()[-1] == f"results: {calibration}"
    assert main([*line, "--candidates", "ts(z)", "--metrics", "[nll]", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (entry,) = facts["comparisons"]
    assert entry["difference"]["mean"] == pytest.approx(mean_difference(calibration, "identity(z)", "ts(z)", "nll"))
    assert f"Deploy {facts['recommendation']['pipeline']}:" in plain
    assert set(facts["pipelines"]) == set(PIPELINES)
    assert main([*line, "--candidates", "ts(z)"]) == 0
    assert capsys.readouterr().out.count("| identity(z) → ts(z) |") == 4
    assert main([*line, "--candidates", "ts(z)", "--metrics", "[nlll]"]) == 2
    assert "nlll" in capsys.readouterr().err
