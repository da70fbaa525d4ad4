"""The guard: nothing within the reference, no calibration far from it, and a continuous way between."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from lightning_calib.api import open_regions
from lightning_calib.calibrators import Identity, Pipeline
from lightning_calib.cli.apply import guard_summary
from lightning_calib.deployment import CalibratedEnsemble, Guard, RegionEnsemble, guard_weight
from lightning_calib.deployment.statistics import case_statistics, scores_statistics
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from tests.calibrators.helpers import randomized
from tests.deployment.runs import calibrate, fitted_run
from tests.deployment.test_monitor import corrupted_copy, made_up
from tests.references.calibrators import mixture
from tests.stores import write_region_store


@pytest.fixture(scope="module")
def noisy(run, tmp_path_factory):
    """The stored outputs of the 2D run with noise on them."""
    folder = tmp_path_factory.mktemp("noisy") / "outputs"
    corrupted_copy(OutputStore(run / "outputs"), folder)
    return folder


def test_what_it_was_fitted_on_is_left_alone():
    reference = made_up(np.random.default_rng(0), 30, group=3)
    guard = Guard(reference)
    assert [guard.weight(case) for case in reference] == [0.0] * 30


def test_cases_of_the_same_kind_are_nearly_left_alone_and_others_are_not():
    rng = np.random.default_rng(1)
    guard = Guard(made_up(rng, 40))
    same, other = ([guard.weight(case) for case in made_up(rng, 200, shift)] for shift in (0.0, 4.0))
    assert np.mean(same) < 0.05
    assert np.mean(other) > 0.9


@given(seed=st.integers(0, 1000), shift=st.floats(0, 20), step=st.floats(1e-6, 0.1))
@settings(max_examples=10)
def test_the_weight_grows_continuously_with_the_distance(seed, shift, step):
    rng = np.random.default_rng(seed)
    reference = made_up(rng, 12)
    case = made_up(rng, 1)[0]
    energies = [each.mean_energy for each in reference]
    width = max(energies) - min(energies)
    start = max(energies) - case.mean_energy
    moved = [
        dataclasses.replace(case, energy=tuple(e + start + move for e in case.energy)) for move in (shift, shift + step)
    ]
    near, far = (Guard(reference).excess(each)["free energy", "two-sample test"] for each in moved)
    assert near == pytest.approx(shift / width, abs=1e-9)
    assert far - near == pytest.approx(step / width, abs=1e-9)
    assert guard_weight(moved[0], reference) == pytest.approx(min(1, max(Guard(reference).excess(moved[0]).values())))


def test_each_quantity_counts():
    rng = np.random.default_rng(2)
    reference, case = made_up(rng, 20), made_up(rng, 1)[0]
    swapped = {
        "confidence": {"confidence": case.confidence[::-1]},
        "classes": {"classes": case.classes[::-1]},
        "disagreement": {"votes": case.votes[::-1]},
        "free energy": {"energy": tuple(10 * value for value in case.energy)},
    }
    for name, change in swapped.items():
        excess = Guard(reference).excess(dataclasses.replace(case, **change))
        assert excess[name, "stability index"] > 0, name
    assert Guard(reference).excess(dataclasses.replace(case, mean_confidence=0.0))["confidence", "two-sample test"] > 1
    without = Guard(reference).excess(dataclasses.replace(case, votes=None))
    assert not any(name == "disagreement" for name, _ in without)


def test_a_constant_quantity_does_not_mistake_rounding_for_distance():
    case = made_up(np.random.default_rng(0), 1)[0]
    reference = [dataclasses.replace(case, group=str(number)) for number in range(6)]
    assert guard_weight(dataclasses.replace(case, mean_confidence=case.mean_confidence + 1e-9), reference) < 1e-5
    assert guard_weight(dataclasses.replace(case, mean_confidence=0.0), reference) == 1


@pytest.mark.parametrize("name", ["cms_op", "cms_ap", "ms"])
@pytest.mark.parametrize("weight", [0.0, 1e-3, 0.5, 1.0])
def test_the_result_is_the_mixture_and_keeps_what_the_calibrator_keeps(name, weight):
    calibrator = randomized(name, 4, seed=0)
    ensemble = CalibratedEnsemble(Pipeline("z", calibrator))
    members = torch.randint(-1, 2, (2, 2, 4, 9, 9), generator=torch.Generator().manual_seed(0)).float()
    found, pooled = ensemble.calibrate(members, weight), members.mean(1)
    maps = torch.stack([calibrator(pooled).detach(), Identity(4)(pooled)]).double().movedim(2, -1).numpy()
    expected = torch.from_numpy(mixture(maps, [1 - weight, weight])).movedim(-1, 1)
    torch.testing.assert_close(found.log_probs.double(), expected, rtol=1e-5, atol=1e-5)
    if calibrator.preserves:
        assert torch.equal(found.log_probs.argmax(1), pooled.argmax(1))
    assert torch.equal(found.mask, found.log_probs.argmax(1))


def test_images_of_a_batch_have_weights_of_their_own(run, deployed, noisy):
    ensemble, guard = CalibratedEnsemble.load(deployed, networks=False), Guard.load(deployed)
    case_id = OutputStore(noisy).case_ids[0]
    clean, other = (OutputStore(path)[case_id].logits for path in (run / "outputs", noisy))
    found = guard.calibrate(ensemble, torch.stack([clean, other]))
    weights = [guard.weight(scores_statistics("a", "a", scores, ensemble)) for scores in (clean, other)]
    assert found.weight.tolist() == pytest.approx(weights)
    assert weights[0] == 0 < weights[1]
    for number, scores in enumerate((clean, other)):
        alone = ensemble.calibrate(scores[None], weights[number])
        torch.testing.assert_close(found.log_probs[number], alone.log_probs[0])


def test_apply_under_a_guard(run, deployed, noisy, tmp_path, capsys):
    plain, watched = (["--deployed", deployed, "--destination", tmp_path / name] for name in ("plain", "watched"))
    exact = ["--precision", "float32"]
    assert calibrate("apply", *plain, "--outputs", noisy, *exact) == 0
    assert calibrate("apply", *watched, "--outputs", noisy, *exact, "--guard") == 0
    assert "24 of 24 cases lie outside" in (told := capsys.readouterr().out)
    assert "the mixture keeps the order, as the calibrator does" in told
    index = json.loads((tmp_path / "watched" / "index.json").read_text())
    ensemble, store = CalibratedEnsemble.load(deployed, networks=False), OutputStore(noisy)
    guard, cases = Guard.load(deployed), StoredCases(store, "p", cache=False)
    for case in store:
        weight = index["cases"][case.case_id]["identity_weight"]
        assert weight == guard.weight(case_statistics(cases, case.case_id, ensemble)) > 0
        first, second = (load_file(tmp_path / name / f"{case.case_id}.safetensors") for name in ("plain", "watched"))
        identity = case.pooled("p").softmax(0)
        expected = (1 - weight) * first["probs"] + weight * identity
        torch.testing.assert_close(second["probs"], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(first["mask"], second["mask"])
    assert calibrate("apply", *watched, "--outputs", noisy, *exact, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["written_now"] == 24  # without the guard the maps are others
    assert all("identity_weight" not in case for case in again["cases"].values())


def test_the_farthest_region_decides_for_all(tmp_path, capsys):
    deployed = fitted_run(write_region_store(tmp_path / "run" / "outputs", cases=20))
    outputs = write_region_store(tmp_path / "new" / "outputs", cases=6, seed=9)
    line = ["apply", "--deployed", deployed, "--outputs", outputs, "--precision", "float32", "--destination"]
    assert calibrate(*line, tmp_path / "plain") == 0
    assert calibrate(*line, tmp_path / "guarded", "--guard") == 0
    assert "outside what the calibrator was fitted on; the mixture keeps the decisions" in capsys.readouterr().out
    index = json.loads((tmp_path / "guarded" / "index.json").read_text())["cases"]
    views, whole = open_regions(outputs), RegionEnsemble.load(deployed)
    slugs, given = [region.slug for region in whole.regions], []
    for name, facts in index.items():
        weights = []
        for slug, store in zip(slugs, views.values(), strict=True):
            one = CalibratedEnsemble.load(deployed / slug)
            cases = StoredCases(store, one.pipeline.pooling, cache=False)
            weights.append(Guard.load(deployed / slug).weight(case_statistics(cases, name, one)))
        given.append(facts["identity_weight"])
        assert given[-1] == pytest.approx(max(weights))
        guarded, plain = (load_file(tmp_path / kind / f"{name}.safetensors") for kind in ("guarded", "plain"))
        assert torch.equal(guarded["mask"], plain["mask"])
        pooled = whole.pool(load_file(outputs / "cases" / f"{name}.safetensors")["logits"][None])
        before, after = (logits[0].double().sigmoid() for logits in (pooled, whole.calibrator.each(pooled)))
        mixed = (1 - max(weights)) * after + max(weights) * before
        outer = torch.ones_like(mixed[0])
        for number, slug in enumerate(slugs):  # from the largest region to the smallest
            found = guarded[f"probs_{slug}"].double()
            free = mixed[number] < outer - 1e-5  # where nesting has nothing to do
            torch.testing.assert_close(found[free], mixed[number][free], atol=1e-5, rtol=0)
            outer = torch.minimum(outer, found)
    assert max(given) > 0
    assert len(set(given)) > 1


def test_what_was_fitted_on_comes_out_as_without_a_guard(run, deployed, tmp_path, capsys):
    for name, source in (("stored", ["--outputs", run / "outputs"]), ("images", ["--images", run / "pictures"])):
        common = ["--deployed", deployed, "--precision", "float32", "--destination", tmp_path / name]
        assert calibrate("apply", *common, *source, "--guard") == 0
        assert "guard: all 24 cases lie within" in capsys.readouterr().out
    ensemble, store = CalibratedEnsemble.load(deployed, networks=False), OutputStore(run / "outputs")
    for case in store:
        expected = ensemble.calibrate(case.logits[None]).log_probs[0].exp()
        for name in ("stored", "images"):
            maps = load_file(tmp_path / name / f"{case.case_id}.safetensors")
            torch.testing.assert_close(maps["probs"], expected, rtol=0, atol=1e-5)


def test_the_summary_names_the_farthest_first():
    cases = {f"c{number}": {"identity_weight": number / 20} for number in range(15)}
    told = guard_summary(cases, None, most=2)
    assert "14 of 15 cases" in told
    assert told.endswith("c14 70%, c13 65% and 12 more")


def test_a_reference_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="the reference has 4 cases; a guard needs at least 5"):
        Guard(made_up(np.random.default_rng(0), 4))
