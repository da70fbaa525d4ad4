"""Masks with a guaranteed risk in deployed folders: what they are learned from, and what apply writes."""

import json
import shutil

import nibabel
import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from lightning_calib.decisions import FALSE, MISSED, THRESHOLDS, Control, case_losses
from lightning_calib.deployment.decisions import Decisions, keep_mask
from lightning_calib.deployment.hub import stage
from lightning_calib.deployment.labelled import Labelled
from lightning_calib.deployment.learned_masks import control_masks
from lightning_calib.deployment.regions import RegionEnsemble
from lightning_calib.deployment.statistics import load_statistics
from lightning_calib.deployment.structures import find_structure
from lightning_calib.outputs.store import OutputStore
from tests.deployment.runs import calibrate, fitted_run
from tests.references import decisions as slow
from tests.stores import write_region_store, write_store

GRID = THRESHOLDS.numpy()


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """Stacks of 2D slices of patients of two sites, with ignored voxels and parts never predicted; deployed."""
    folder = tmp_path_factory.mktemp("patients")
    groups = {f"case-{n:02d}": [f"site {n // 32}", f"patient {n // 2}"] for n in range(64)}
    levels = ["site", "patient"]
    store = write_store(folder / "outputs", cases=64, background=0, groups=groups, group_levels=levels, valid=True)
    assert store.manifest.group_level == "site"
    return fitted_run(folder / "outputs", "--group_level", "patient"), store


def control(deployed, store, *options, structure="foreground"):
    return calibrate("control", "--deployed", deployed, "--outputs", store.path, "--structure", structure, *options)


@pytest.mark.parametrize(("risk", "side", "oracle"), [("missed", "outer", slow.missed), ("false", "inner", slow.false)])
def test_the_threshold_comes_from_unseen_patients(patients, tmp_path, risk, side, oracle, capsys):
    deployed, store = patients
    assert control(deployed, store, "--risk", risk, "--alpha", 0.2, "--group_level", "patient", "--json") == 0
    told = json.loads(capsys.readouterr().out)["rule"]
    fitted = {case.case_id for case in load_statistics(deployed / "reference.json")}
    patient = store.groups_at("patient")
    unseen = [c for c in store.case_ids if c not in fitted]
    assert {patient[c] for c in unseen}.isdisjoint({patient[c] for c in fitted})
    calibrator, curves = Decisions.load(deployed), {}
    assert calibrator.masks[-1].threshold == told["threshold"]
    ensemble = Labelled(deployed, store.path)
    for case_id in unseen:
        case = ensemble.read(case_id)
        target, valid = store[case_id].target, store[case_id].valid
        counted = valid & (target != 255)
        probs, truth = case.maps.probs[1:].sum(0)[counted].numpy(), (target > 0)[counted].numpy()
        curve = [oracle(probs, truth, t) for t in GRID]
        curves.setdefault(patient[case_id], []).append(curve)
    means = [np.mean(curve, axis=0) for curve in curves.values()]
    assert told["threshold"] == pytest.approx(GRID[slow.crc(means, 0.2, side)])
    assert told["facts"]["groups"] == len(means)


def test_cases_that_the_calibrator_knows_are_no_evidence(patients, run, deployed, capsys):
    folder, store = patients
    assert control(folder, store, "--alpha", 0.2) == 2  # both sites have patients in cal
    assert "but others of their site: run again with --group_level site" in capsys.readouterr().err
    assert calibrate("control", "--deployed", deployed, "--outputs", run / "outputs", "--structure", "rod") == 2
    assert "was fitted on all cases" in (told := capsys.readouterr().err)
    assert "--cases cal_val" in told


def test_what_cannot_be_promised_is_refused(patients, capsys):
    deployed, store = patients
    assert control(deployed, store, "--alpha", 0.01, "--group_level", "patient") == 2
    assert "99 groups" in capsys.readouterr().err
    assert control(deployed, store, structure="clas 1") == 2
    assert "has no structure 'clas 1'; it has class 0" in capsys.readouterr().err
    assert control(deployed, store, "--risk", "tests.references.decisions.missed", "--group_level", "patient") == 2
    assert "no lightning_calib.decisions.Risk" in capsys.readouterr().err


def test_apply_writes_the_masks_that_were_judged(patients, tmp_path):
    deployed, store = patients
    for risk in ("missed", "false"):
        assert control(deployed, store, "--risk", risk, "--alpha", 0.2, "--group_level", "patient") == 0
    maps = tmp_path / "maps"
    where = ["--deployed", deployed, "--outputs", store.path, "--destination", maps]
    assert calibrate("apply", *where, "--precision", "float32") == 0
    rules = {rule.name: rule for rule in Decisions.load(deployed).masks}
    labelled = Labelled(deployed, store.path, "patient")
    for name, risk in (("foreground_outer", MISSED), ("foreground_inner", FALSE)):
        losses = []
        for case_id in labelled.unseen:
            written = load_file(maps / f"{case_id}.safetensors")
            mask, case = written[name].bool(), store[case_id]
            expected = written["probs"][1:].sum(0).clamp(max=1).double() >= rules[name].threshold
            assert (mask == expected).all()
            assert (np.asarray(Image.open(maps / f"{case_id}_{name}.png")) == mask.numpy()).all()
            counted = case.valid & (case.target != 255)
            own, truth = mask[counted].numpy(), (case.target > 0)[counted].numpy()
            losses.append(slow.missed(own, truth, 1) if risk is MISSED else slow.false(own, truth, 1))
        assert np.mean(losses) == pytest.approx(rules[name].facts["mean_loss"])  # two cases a patient, all counted
    inner, outer = (load_file(maps / "case-00.safetensors")[f"foreground_{side}"] for side in ("inner", "outer"))
    assert not (inner.bool() & ~outer.bool()).any()


def test_a_new_promise_makes_maps_anew_and_a_guard_leaves_it_out(patients, tmp_path):
    deployed, store = patients
    where = ["--deployed", deployed, "--outputs", store.path]
    index = tmp_path / "maps" / "index.json"
    for expected, alpha in ((64, 0.2), (0, 0.2), (64, 0.3)):
        assert control(deployed, store, "--alpha", alpha, "--group_level", "patient") == 0
        assert calibrate("apply", *where, "--destination", index.parent) == 0
        assert json.loads(index.read_text())["written_now"] == expected
    assert calibrate("apply", *where, "--destination", tmp_path / "guarded", "--guard") == 0
    assert not any("foreground" in name for name in load_file(tmp_path / "guarded" / "case-00.safetensors"))


def test_masks_are_judged_by_whole_sites(patients, capsys):
    deployed, store = patients
    options = ["--alpha", 0.3, "--group_level", "patient", "--judge_by", "site", "--json"]
    assert control(deployed, store, *options) == 0
    told = json.loads(capsys.readouterr().out)
    labelled = Labelled(deployed, store.path, "patient")
    curves = {}
    tables = labelled.tables(labelled.unseen, find_structure(deployed, "foreground"), quiet=True)
    for case_id, table in zip(labelled.unseen, tables, strict=True):
        curves.setdefault(labelled.groups[case_id], []).append(case_losses(MISSED, table))
    means = {patient: np.mean(found, axis=0) for patient, found in curves.items()}
    for site, loss in told["by_unit"].items():
        others = np.stack([mean for patient, mean in means.items() if not patient.startswith(site)])
        place = Control("outer", 0.3).choose(others)
        own = [mean[place] for patient, mean in means.items() if patient.startswith(site)]
        assert loss == pytest.approx(np.mean(own))


def test_decisions_belong_to_one_calibrator(patients, tmp_path, capsys):
    deployed, store = patients
    copy = tmp_path / "deployed"
    shutil.copytree(deployed, copy)
    assert control(copy, store, "--alpha", 0.2, "--group_level", "patient") == 0
    (tmp_path / "hub").mkdir()
    stage(copy, tmp_path / "hub", "owner/name", networks=False)
    assert Decisions.load(tmp_path / "hub") == Decisions.load(copy)
    path = copy / "decisions.json"
    path.write_text(path.read_text().replace('"threshold": 0', '"threshold": 1'))
    assert calibrate("apply", "--deployed", copy, "--outputs", store.path, "--destination", tmp_path / "maps") == 2
    assert "changed or damaged" in capsys.readouterr().err
    again = tmp_path / "again"
    shutil.copytree(deployed, again)
    rule = Decisions.load(deployed).masks[0]
    Decisions("of another", (rule,)).save(again)
    assert calibrate("apply", "--deployed", again, "--outputs", store.path, "--destination", tmp_path / "maps") == 2
    assert "of another calibrator: delete it" in capsys.readouterr().err


def test_volumes_get_nifti_masks(scans, tmp_path):
    deployed = scans / "deployed-half"
    where = ["--calibration", scans / "calibration", "--pipeline", "ts(z)", "--cases", "cal_val"]
    assert calibrate("deploy", *where, "--destination", deployed) == 0
    known = ["--deployed", deployed, "--outputs", scans / "outputs"]
    assert calibrate("control", *known, "--structure", "core", "--alpha", 0.5) == 0
    assert calibrate("apply", *known, "--destination", tmp_path, "--precision", "float32") == 0
    rule = Decisions.load(deployed).masks[0]
    for path in tmp_path.glob("*_core_outer.nii.gz"):
        probs = nibabel.load(str(path).replace("core_outer", "probs"))
        mask = nibabel.load(path)
        assert np.asarray(mask.dataobj).dtype == np.uint8
        assert (mask.affine == probs.affine).all()
        assert (np.asarray(mask.dataobj) == (probs.get_fdata()[..., 1] >= rule.threshold)).all()
    assert len(list(tmp_path.glob("*_core_outer.nii.gz"))) == len(OutputStore(scans / "outputs"))


def test_regions_have_promises_after_they_are_nested(tmp_path):
    outputs = write_region_store(tmp_path / "outputs", cases=30)
    deployed = fitted_run(outputs)
    labelled, region = Labelled(deployed, outputs), find_structure(deployed, "core")
    found = control_masks(labelled, region, alpha=0.2)
    keep_mask(deployed, found.rule)
    ensemble, curves = RegionEnsemble.load(deployed), []
    for case_id in labelled.unseen:
        case = labelled.stored(case_id)
        probs = ensemble.calibrate(case.logits[None]).probs[0, 1]
        counted = case.target != 255
        truth = (case.target >= 2)[counted].numpy()
        curves.append([slow.missed(probs[counted].numpy().astype(np.float64), truth, t) for t in GRID])
    assert found.rule.threshold == pytest.approx(GRID[slow.crc(curves, 0.2, "outer")])
    assert calibrate("apply", "--deployed", deployed, "--outputs", outputs, "--destination", tmp_path / "maps") == 0
    written = load_file(tmp_path / "maps" / "case-00.safetensors")
    assert (
        written["core_outer"].bool() == (written["probs_core"].double() >= found.rule.threshold)
    ).float().mean() > 0.99
