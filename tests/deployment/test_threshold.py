"""Thresholds of deployed folders: chosen on the cases of the fit, judged on unseen ones."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from lightning_calib.decisions import THRESHOLDS
from lightning_calib.deployment.decisions import Decisions
from lightning_calib.deployment.labelled import Labelled
from lightning_calib.deployment.learned_thresholds import DETECTION_THRESHOLDS
from tests.deployment.runs import calibrate, fitted_run
from tests.references import decisions as slow
from tests.stores import write_store

GRID = THRESHOLDS.numpy()


@pytest.fixture(scope="module")
def sheets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sheets")
    groups = {f"case-{n:02d}": f"pair {n // 2}" for n in range(24)}
    store = write_store(folder / "outputs", cases=24, background=0, groups=groups)
    return fitted_run(store.path), store


def maps_of(sheets, label):
    """Probabilities and truth of counted voxels of the cases of the fit, and of unseen ones by group."""
    labelled = Labelled(sheets[0], sheets[1].path)
    found = []
    for ids in (labelled.fitted, labelled.unseen):
        part = {}
        for case_id in ids:
            case = labelled.read(case_id)
            pair = case.maps.probs[label].double().numpy(), (case.labels == label).numpy(), case.counted.numpy()
            part.setdefault(labelled.groups[case_id], []).append(pair)
        found.append(part)
    return found


def threshold(sheets, *options):
    return calibrate(
        "threshold", "--deployed", sheets[0], "--outputs", sheets[1].path, "--structure", "class 1", *options
    )


def mean_over_groups(part, value):
    return np.mean([np.mean([value(*case) for case in cases]) for cases in part.values()])


@pytest.mark.parametrize("wanted", ["cost", "dice"])
def test_the_best_threshold_of_the_fit_is_judged_on_unseen_groups(sheets, wanted, capsys):
    options = ["--cost_fn", 5, "--cost_fp", 1] if wanted == "cost" else ["--dice", "true"]
    assert threshold(sheets, *options, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    fitted, unseen = maps_of(sheets, 1)

    def at(t):
        def value(probs, truth, counted):
            mask, truth = (probs >= t)[counted], truth[counted]
            return 5 * (truth & ~mask).sum() + (mask & ~truth).sum() if wanted == "cost" else slow.dice(mask, truth)

        return value

    chosen, sign = told["rule"]["threshold"], 1 if wanted == "cost" else -1
    best = sign * mean_over_groups(fitted, at(chosen))
    assert all(best <= sign * mean_over_groups(fitted, at(t)) + 1e-9 for t in GRID[1:-1:23])
    assert told["figures"]["chosen"]["mean"] == pytest.approx(mean_over_groups(unseen, at(chosen)))
    name, theory = ("rule of calibrated probabilities", 1 / 6) if wanted == "cost" else ("threshold 0.5", 0.5)
    other = mean_over_groups(unseen, at(GRID[np.searchsorted(GRID, theory - 1e-9)]))
    assert told["figures"][name]["mean"] == pytest.approx(other)
    for own in told["figures"].values():
        assert own["low"] <= own["mean"] <= own["high"]
    where = ["--outputs", sheets[1].path, "--destination", sheets[1].path.parent / wanted, "--precision", "float32"]
    assert calibrate("apply", "--deployed", sheets[0], *where) == 0
    written = load_file(sheets[1].path.parent / wanted / "case-00.safetensors")
    assert (written["class_1_chosen"].bool() == (written["probs"][1].double() >= chosen)).all()


def test_detections_are_as_many_as_may_be(sheets, capsys):
    assert threshold(sheets, "--false_per_case", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    figures = []
    for part in maps_of(sheets, 1):
        curve = []
        for t in DETECTION_THRESHOLDS:
            lesions = found = false = cases = 0
            for probs, truth, counted in (case for group in part.values() for case in group):
                true, masks = slow.parts(truth & counted), slow.parts((probs >= t) & counted)
                good = {
                    (a, b) for a, x in enumerate(true) for b, y in enumerate(masks) if len(x & y) >= 0.1 * len(x | y)
                }
                lesions, found = lesions + len(true), found + len({a for a, _ in good})
                false, cases = false + len(masks) - len({b for _, b in good}), cases + 1
            curve.append((found / lesions, false / cases))
        figures.append(np.array(curve))
    fitted, unseen = figures
    allowed = np.where(fitted[:, 1] <= 2, fitted[:, 0], -1)
    place = int(allowed.argmax())
    assert told["rule"]["threshold"] == DETECTION_THRESHOLDS[place]
    shown = [(point["found"], point["false_per_case"]) for point in told["rule"]["facts"]["froc"]]
    assert np.array(shown) == pytest.approx(unseen)
    assert [x["mean"] for x in told["figures"].values()] == pytest.approx(unseen[place].tolist())
    assert Decisions.load(sheets[0]).masks[-1].kind == "chosen"
    assert threshold(sheets, "--false_per_case", 2) == 0
    assert "detection curve on unseen cases" in capsys.readouterr().out


def test_one_thing_is_wanted(sheets, capsys):
    for options in ([], ["--cost_fn", 1], ["--dice", "true", "--false_per_case", 1]):
        assert threshold(sheets, *options) == 2
        assert "one of them" in capsys.readouterr().err
    assert threshold(sheets, "--cost_fn", -1, "--cost_fp", 1) == 2
    assert "above 0" in capsys.readouterr().err
