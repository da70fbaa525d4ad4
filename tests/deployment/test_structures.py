"""Volumes with intervals and the expected quality of masks: learned from unseen cases, written by apply."""

import csv
import json
import math

import nibabel
import numpy as np
import pytest

from lightning_calib.decisions import QualityModel, StructureFacts, VolumeModel, structure_facts
from lightning_calib.deployment.decisions import Decisions
from lightning_calib.deployment.labelled import Labelled
from lightning_calib.deployment.learned_structures import Observed, judge_quality, judge_volume, observe
from tests.deployment.runs import calibrate, fitted_run
from tests.references import decisions as slow
from tests.stores import write_region_store, write_store


@pytest.fixture(scope="module")
def sheets(tmp_path_factory):
    """A store of cases in pairs, one class of it the background; deployed on some of them."""
    folder = tmp_path_factory.mktemp("sheets")
    groups = {f"case-{n:02d}": f"pair {n // 2}" for n in range(44)}
    store = write_store(folder / "outputs", cases=44, background=0, groups=groups, valid=True)
    return fitted_run(store.path), store


def rows_of(folder):
    with (folder / "structures.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_models_come_from_unseen_groups_and_are_judged_by_the_others(sheets, capsys):
    deployed, store = sheets
    assert calibrate("structures", "--deployed", deployed, "--outputs", store.path, "--level", 0.8, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    decisions, labelled = Decisions.load(deployed), Labelled(deployed, store.path)
    assert set(decisions.volumes) == {"class 1", "class 2", "class 3"}
    facts, volumes, groups, every = [], [], [], []
    for case_id in labelled.unseen:
        case = labelled.read(case_id)
        counted = store[case_id].valid & (store[case_id].target != 255)
        for label in (1, 2, 3):
            members = store[case_id].logits.argmax(dim=1) == label
            own, truth = case.maps.mask == label, store[case_id].target == label
            fact = structure_facts(case.maps.probs[label], own, counted, members)
            every.append((fact, slow.dice(own[counted], truth[counted])))
            if label == 1:
                facts.append(fact)
                volumes.append(float(truth[counted].sum()))
                groups.append(labelled.groups[case_id])
    assert decisions.volumes["class 1"] == VolumeModel.fit(facts, volumes, groups, "volume", 0.8)
    expected = QualityModel.fit(*map(list, zip(*every, strict=True)))
    assert decisions.quality.weights == pytest.approx(expected.weights)
    found = told["volumes"][0]
    assert found["volume"] == pytest.approx(np.mean(volumes))
    assert found["bias"]["mean"] == pytest.approx(np.mean([f.expected for f in facts]) / np.mean(volumes) - 1)
    assert 0.5 < found["coverage"]["mean"] <= 1


def test_apply_writes_a_queue_with_the_worst_cases_first(sheets, tmp_path):
    deployed, store = sheets
    where = ["--deployed", deployed, "--outputs", store.path]
    assert calibrate("structures", *where, "--level", 0.8) == 0
    assert calibrate("apply", *where, "--destination", tmp_path / "maps") == 0
    rows, decisions = rows_of(tmp_path / "maps"), Decisions.load(deployed)
    assert len(rows) == 44 * 3
    lowest = {}
    for row in rows:
        lowest[row["case"]] = min(float(row["predicted_dice"]), lowest.get(row["case"], 2))
    order = list(dict.fromkeys(row["case"] for row in rows))
    assert order == sorted(order, key=lambda case: (lowest[case], case))
    labelled = Labelled(deployed, store.path)
    for row in rows[:6]:
        label = int(row["structure"][-1])
        maps = labelled.read(row["case"]).maps
        fact = structure_facts(maps.probs[label], maps.mask == label, members=maps.votes == label)
        assert float(row["volume"]) == pytest.approx(float(maps.probs[label].double().sum()))
        assert (float(row["low"]), float(row["high"])) == pytest.approx(
            decisions.volumes[row["structure"]].interval(fact)
        )
        assert float(row["expected_dice"]) == pytest.approx(fact.expected_dice)
        assert float(row["predicted_dice"]) == pytest.approx(decisions.quality.predict([fact])[0])
        assert row["unit"] == "voxels"
    assert calibrate("apply", *where, "--destination", tmp_path / "guarded", "--guard") == 0
    assert {row["low"] for row in rows_of(tmp_path / "guarded")} == {""}


def test_an_interrupted_apply_has_the_whole_queue(sheets, tmp_path):
    deployed, store = sheets
    where = ["--deployed", deployed, "--outputs", store.path, "--destination", tmp_path]
    assert calibrate("apply", *where) == 0
    before = (tmp_path / "structures.csv").read_bytes()
    (tmp_path / "structures.csv").unlink()
    (tmp_path / "records" / "case-03.json").unlink()
    assert calibrate("apply", *where) == 0
    assert json.loads((tmp_path / "index.json").read_text())["written_now"] == 1
    assert (tmp_path / "structures.csv").read_bytes() == before


def test_volumes_of_scans_are_in_millilitres(scans, tmp_path):
    where = ["--deployed", scans / "deployed", "--outputs", scans / "outputs", "--destination", tmp_path]
    assert calibrate("apply", *where, "--precision", "float32") == 0
    for row in rows_of(tmp_path):
        probs = nibabel.load(tmp_path / f"{row['case']}_probs.nii.gz")
        voxel = abs(np.linalg.det(probs.affine[:3, :3])) / 1000
        assert (row["structure"], row["unit"]) == ("core", "ml")
        assert float(row["volume"]) == pytest.approx(voxel * probs.get_fdata()[..., 1].sum(), rel=1e-4)


def test_too_few_groups_are_told(sheets, capsys):
    deployed, store = sheets
    assert calibrate("structures", "--deployed", deployed, "--outputs", store.path, "--level", 0.99) == 2
    assert "needs 99 groups" in capsys.readouterr().err


def test_regions_have_volumes_and_agreement(tmp_path):
    outputs = write_region_store(tmp_path / "outputs", cases=30)
    deployed = fitted_run(outputs)
    rows = observe(Labelled(deployed, outputs))
    assert {row.structure for row in rows} == {"Whole Tumor", "core", "enhancing"}
    labelled = Labelled(deployed, outputs)
    case = labelled.read(labelled.unseen[0])
    inside = case.stored.logits[:, 1] > 0
    counted = case.labels != 255
    (core,) = (row for row in rows[:3] if row.structure == "core")
    assert core.facts.agreement == pytest.approx(slow.dice(inside[0][counted], inside[1][counted]))
    assert core.facts.expected == pytest.approx(float(case.maps.probs[1][counted].double().sum()))
    found = judge_volume([row for row in rows if row.structure == "core"], 0.8, "volume")
    assert found.coverage.low <= found.coverage.mean <= found.coverage.high
    assert not math.isnan(judge_quality(rows).rank)


def test_no_structure_is_missed_by_more_than_itself():
    """Volumes vary from case to case; masks have none of them."""
    volumes = [int(size) for size in np.random.default_rng(0).integers(1, 500, 20)]
    facts = [StructureFacts(mask=0, hits=0.0, expected=2.0 * size, variance=1.0) for size in volumes]
    pairs = zip(facts, volumes, strict=True)
    rows = [Observed(f"patient {n % 12}", "speck", fact, size, 0.0) for n, (fact, size) in enumerate(pairs)]
    found = judge_volume(rows, 0.8, "volume")
    assert (found.mask_bias.mean, found.mask_bias.low, found.mask_bias.high) == (-1, -1, -1)
    assert (found.bias.mean, found.bias.low, found.bias.high) == pytest.approx((1, 1, 1))
