"""Selection by groups on small stores with a known truth."""

import json
import math

import numpy as np
import pytest
import torch

from lightning_calib.calibrators import build
from lightning_calib.datasets.splits import make_folds
from lightning_calib.experiment.selection.crossfit import CrossFitter
from lightning_calib.experiment.selection.evidence import Evidence
from lightning_calib.experiment.selection.fit import GroupFitter
from lightning_calib.experiment.selection.folds import FoldedVoxels, choose_level, draw, group_weights, inclusion
from lightning_calib.experiment.selection.held_out import held_out_table
from lightning_calib.experiment.selection.select import select_by_groups
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.solvers import fit, mean_nll

CANDIDATES = ["identity(p)", "ts(p)", "cms_op(p)"]
IGNORED = 255


def write(path, temperatures, cases=2, shape=(16, 16), num_classes=3):
    """A store of one member whose logits have a temperature of their own in each group; and the groups."""
    groups = {f"{group}-{case}": f"g{group}" for group in range(len(temperatures)) for case in range(cases)}
    names = [f"class {i}" for i in range(num_classes)]
    writer = OutputWriter(path, "toy", names, 2, [Member("0")], ignore_index=IGNORED, groups=groups)
    for number, case_id in enumerate(groups):
        generator = torch.Generator().manual_seed(number)
        truth = 2 * torch.randn(num_classes, *shape, generator=generator)
        noise = -torch.empty(truth.shape).exponential_(generator=generator).log()
        target = (truth + noise).argmax(0)
        target[0, : number % 5] = IGNORED
        writer.write(case_id, temperatures[number // cases] * truth[None], target)
    writer.finish()
    return OutputStore(path), groups


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory):
    """Six groups, all with logits twice too large."""
    return write(tmp_path_factory.mktemp("agreeing") / "outputs", [2.0] * 6)


@pytest.fixture(scope="module")
def found(agreeing):
    """The selection on all of them."""
    store, groups = agreeing
    return select_by_groups(store, store.case_ids, groups, CANDIDATES)


def test_a_temperature_that_all_groups_share_is_found(found):
    assert found.pipeline == "ts(p)"
    assert found.calibrator.temperature.item() == pytest.approx(2.0, abs=0.2)
    assert found.chosen.share == 1
    assert found.chosen.gain.low > 0.05
    assert found.procedure.gain.mean == pytest.approx(found.chosen.gain.mean, abs=0.05)
    assert found.picks["ts(p)"] >= 5
    assert found.certificate["converged"]
    interval = found.temperatures["p"]
    assert abs(math.log(interval.temperature / 2)) < 4 * interval.log_error
    assert interval.low < interval.temperature < interval.high < 2.5
    assert 5 < interval.effective_groups <= 6


def test_a_margin_that_is_bent_alike_in_all_groups_is_straightened(tmp_path):
    groups = {f"case{n}": f"g{n // 2}" for n in range(12)}
    writer = OutputWriter(tmp_path / "outputs", "toy", ["a", "b", "c"], 2, [Member("0")], groups=groups)
    for number, case_id in enumerate(groups):
        generator = torch.Generator().manual_seed(number)
        truth = 2 * torch.randn(3, 24, 24, generator=generator)
        target = (truth - torch.empty_like(truth).exponential_(generator=generator).log()).argmax(0)
        gaps = truth.amax(0) - truth
        writer.write(case_id, -(gaps + 3 * (gaps - 2).relu())[None], target)  # from 2 on four times too large
    writer.finish()
    store = OutputStore(tmp_path / "outputs")
    found = select_by_groups(store, store.case_ids, groups, ["identity(p)", "ts(p)", "gs(p)"])
    assert found.pipeline == "gs(p)"
    assert [rung.pipeline for rung in found.rungs if rung.accepted] == ["ts(p)", "gs(p)"]
    low, high = found.calibrator.coefficients[:, 0], found.calibrator.coefficients[:, -1]
    assert (low > 0.7).all()
    assert (high < 0.5).all()


def test_a_selection_is_json_and_the_same_again(agreeing, found):
    store, groups = agreeing
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read["pipeline"] == "ts(p)"
    assert read["held_out"]["paths"][1]["strengths"][0] == "inf"
    again = select_by_groups(store, store.case_ids, groups, CANDIDATES)
    assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())
    assert torch.equal(again.calibrator.log_temperature, found.calibrator.log_temperature)


def test_groups_that_contradict_each_other_leave_the_outputs_as_they_are(tmp_path):
    store, groups = write(tmp_path / "outputs", [3.0, 0.4, 3.0, 0.4, 1.0, 1.0])
    found = select_by_groups(store, store.case_ids, groups, CANDIDATES)
    assert found.pipeline == "identity(p)"
    assert "groups" in found.reason
    assert found.chosen.gain.mean == 0
    assert found.certificate == {}
    assert found.temperatures["p"].low < 1 < found.temperatures["p"].high


def test_too_few_groups_are_said_so(agreeing):
    store, groups = agreeing
    few = [case_id for case_id in store.case_ids if groups[case_id] in ("g0", "g1", "g2", "g3")]
    found = select_by_groups(store, few, groups, CANDIDATES)
    assert found.pipeline == "identity(p)"
    assert "too few groups to tell (4; at least 5 needed)" in found.reason
    json.dumps(found.to_dict(), allow_nan=False)


def test_infinity_is_exactly_the_simpler_candidate(agreeing):
    store, groups = agreeing
    folded = FoldedVoxels(StoredCases(store), store.case_ids, groups)
    fitter = CrossFitter(folded, 3)
    identity, scaling = (fitter(name).losses for name in ("identity(p)", "ts(p)"))
    assert np.array_equal(scaling[0], identity[0])
    for richer in (fitter(name).losses for name in ("gs(p)", "cms_op(p)")):
        assert np.array_equal(richer[0], scaling[-1])
        strong = np.abs(richer[1] - scaling[-1]).max()
        assert 0 < strong < np.abs(richer[-1] - scaling[-1]).max()
    everything = GroupFitter(StoredCases(store), store.case_ids, groups)
    (at_infinity, _), (scaled, _) = everything("cms_op(p)", math.inf), everything("ts(p)", 0.0)
    assert torch.equal(at_infinity.log_temperature, scaled.log_temperature)
    assert everything("ts(p)", math.inf)[0].name == "identity"


def test_held_out_losses_are_those_of_fits_without_the_group(agreeing):
    """Against a fit by hand: without one group, judged on it, all voxels."""
    store, groups = agreeing
    cases = StoredCases(store)
    folded = FoldedVoxels(cases, store.case_ids, groups)
    table = held_out_table(folded, [CrossFitter(folded, 3)("ts(p)")])
    left_out = table.groups.index("g3")
    parts = {i: (cases.pooled(i)[None], cases.target(i)[None], [i]) for i in store.case_ids}
    calibrator = build("ts", 3)
    others = {i: part for i, part in parts.items() if groups[i] != "g3"}
    fit(calibrator, list(others.values()), ignore_index=IGNORED, case_weights=group_weights(list(others), groups))
    own = [mean_nll(calibrator, [part], IGNORED)[0] for i, part in parts.items() if groups[i] == "g3"]
    assert table.paths[0].nll[-1, left_out] == pytest.approx(np.mean(own), abs=1e-5)


def test_a_sample_of_voxels_judges_as_all_of_them_do(agreeing):
    store, groups = agreeing
    tables = []
    for voxels in (2**18, 1200):  # a hundred of 256 voxels a case
        folded = FoldedVoxels(StoredCases(store), store.case_ids, groups, voxels=voxels)
        tables.append(held_out_table(folded, [CrossFitter(folded, 3)(name) for name in CANDIDATES[:2]]))
    whole, part = ([path.nll[-1].mean() for path in table.paths] for table in tables)
    assert len(folded.group) < 1500
    assert whole[1] - whole[0] == pytest.approx(part[1] - part[0], abs=0.05)
    assert whole[0] == pytest.approx(part[0], abs=0.1)


def test_samples_for_stacking_are_one_table(agreeing):
    store, groups = agreeing
    evidence = Evidence(store, store.case_ids, groups, CANDIDATES)
    sample = evidence.sample("p", {"cms_op(p)": 1.0}, CANDIDATES)
    assert sample.pipelines == tuple(CANDIDATES)
    assert sample.log_q.dtype == np.float32
    assert sample.log_q.shape == (3, len(sample.weights)) == (3, len(sample.group))
    assert sample.weights.sum() == pytest.approx(1)
    reference = evidence.table.paths[0].nll[-1].mean()
    assert -(sample.log_q[0] * sample.weights).sum() == pytest.approx(reference, abs=1e-6)


def test_drawn_voxels_stand_for_their_case(agreeing):
    store, _ = agreeing
    cases = StoredCases(store)
    index, weight = draw(cases, "1-0", 80)
    again, _ = draw(cases, "1-0", 80)
    assert torch.equal(index, again)
    assert 50 < len(index) < 120
    assert float(weight.sum()) == pytest.approx(1)
    assert set(index.tolist()) <= set(cases.counted("1-0").tolist())
    assert weight.max() > 2 * weight.min()  # voxels that the map got right count for more of their kind


def test_probabilities_add_up_to_the_size():
    importance = torch.rand(500, generator=torch.Generator().manual_seed(0)).double() ** 4 + 0.01
    probability = inclusion(importance, 300)
    assert float(probability.sum()) == pytest.approx(300)
    assert float(probability.max()) == 1


def test_folds_hold_whole_groups_once():
    names = [f"g{i}" for i in range(23)]
    folds = make_folds(names * 3, seed=1, folds=10)
    assert len(folds) == 10
    assert sorted(name for fold in folds for name in fold) == sorted(names)
    assert make_folds(names, seed=1, folds=10) == folds
    assert make_folds(names, seed=2, folds=10) != folds


def test_the_coarsest_level_with_enough_groups_is_taken():
    ids = [str(i) for i in range(12)]
    levels = [{i: str(int(i) // k) for i in ids} for k in (6, 2, 1)]
    assert choose_level(levels, ids) == 1


def test_pipelines_that_newton_cannot_fit_are_refused(agreeing):
    store, groups = agreeing
    with pytest.raises(ValueError, match=r"ets\(p\) cannot be cross-fitted"):
        select_by_groups(store, store.case_ids, groups, ["ets(p)"])
