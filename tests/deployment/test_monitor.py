"""Drift is reported when there is some, and rarely when there is none."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import scipy.stats
import torch

from lightning_calib.calibrators import Pipeline
from lightning_calib.deployment import CalibratedEnsemble
from lightning_calib.deployment.monitor import draw, ks_distance, monitor, stability_index
from lightning_calib.deployment.statistics import CaseStatistics, case_statistics, load_statistics
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.outputs.writer import OutputWriter
from tests.deployment.runs import calibrate
from tests.stores import write_store


def made_up(rng, cases, shift=0.0, group=1):
    """Statistics of cases whose confidence, energy, classes and votes vary from case to case."""
    found = []
    for number in range(cases):
        sure = 1 / (1 + np.exp(-(1.5 - shift + 0.4 * rng.standard_normal())))
        bins = rng.dirichlet(50 * scipy.stats.beta(8 * sure, 8 * (1 - sure)).pdf(np.arange(0.025, 1, 0.05)) + 0.1)
        energy = np.sort(rng.normal(5 - shift, 1, 32) + 0.5 * rng.standard_normal())
        votes = np.array([sure, (1 - sure) * 0.7, (1 - sure) * 0.3])
        classes = rng.dirichlet([40, 20, 10])
        shares = [tuple(map(float, values)) for values in (bins, classes, energy, votes)]
        found.append(CaseStatistics(f"c{number}", f"g{number // group}", float(sure), *shares))
    return found


def test_distances_are_the_textbook_ones():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=17), np.round(rng.normal(size=23), 1)
    assert ks_distance(first, second) == pytest.approx(scipy.stats.ks_2samp(first, second).statistic)
    p, q = np.array([0.2, 0.8]), np.array([0.4, 0.6])
    assert stability_index(p, q) == pytest.approx(0.2 * np.log(2) - 0.2 * np.log(0.6 / 0.8))
    assert np.isfinite(stability_index(np.array([0.0, 1.0]), np.array([1.0, 0.0])))


def test_false_alarms_are_as_rare_as_stated_and_drift_is_seen():
    rng = np.random.default_rng(1)
    reference = made_up(rng, 40)
    clean = [monitor(reference, made_up(rng, 12), alpha=0.05, resamples=300).drift for _ in range(60)]
    assert np.mean(clean) <= 0.2  # 0.05 stated; the reference itself is a sample
    assert all(monitor(reference, made_up(rng, 12, shift=2.0), alpha=0.05, resamples=300).drift for _ in range(5))


def test_the_verdict_names_what_has_drifted():
    rng = np.random.default_rng(2)
    reference = made_up(rng, 30)
    new = made_up(rng, 15)
    energy = [dataclasses.replace(case, energy=tuple(value + 9 for value in case.energy)) for case in new]
    verdict = monitor(reference, energy)
    assert verdict.drift
    assert verdict.p_value <= 0.01
    assert {check.quantity for check in verdict.checks if check.drifted} == {"free energy"}
    without_votes = [dataclasses.replace(case, votes=None) for case in new]
    assert "disagreement" not in {check.quantity for check in monitor(reference, without_votes).checks}


def test_groups_are_drawn_whole():
    blocks = [np.array([0, 1, 2]), np.array([3, 4, 5])]
    rows = draw(np.random.default_rng(0), blocks, 6)
    assert len(rows) == 6
    assert all(tuple(part) in {(0, 1, 2), (3, 4, 5)} for part in rows.reshape(2, 3))


def test_correlated_cases_of_few_groups_raise_the_thresholds():
    rng = np.random.default_rng(3)
    grouped = [dataclasses.replace(c, group=f"g{n // 8}") for n, c in enumerate(made_up(rng, 5) * 8)]
    ordered = sorted(grouped, key=lambda case: case.mean_confidence)
    same = [dataclasses.replace(case, group=f"g{n // 8}") for n, case in enumerate(ordered)]
    alone = [dataclasses.replace(case, group=f"a{n}") for n, case in enumerate(ordered)]
    new = made_up(rng, 16)
    for by_group, by_case in zip(monitor(same, new).checks, monitor(alone, new).checks, strict=True):
        assert by_group.threshold > by_case.threshold


def test_statistics_of_a_case(tmp_path):
    store = write_store(tmp_path / "outputs", cases=6, members=3, valid=True)
    ensemble = CalibratedEnsemble(Pipeline.parse("identity(z)", 4))
    case = store["case-00"]
    found = case_statistics(StoredCases(store), case.case_id, ensemble)
    inside = case.valid.numpy()
    pooled = case.logits.double().mean(0).numpy()[:, inside]
    probs = np.exp(pooled) / np.exp(pooled).sum(0)
    counts = np.bincount(np.minimum((probs.max(0) * 20).astype(int), 19), minlength=20)
    np.testing.assert_allclose(found.confidence, counts / counts.sum(), atol=2 / counts.sum())
    assert found.mean_confidence == pytest.approx(probs.max(0).mean(), abs=1e-6)
    winners = case.logits.argmax(1).numpy()[:, inside]
    np.testing.assert_allclose(
        found.votes, np.bincount((winners != pooled.argmax(0)).sum(0), minlength=4) / len(winners[0])
    )
    np.testing.assert_allclose(found.classes, np.bincount(pooled.argmax(0), minlength=4) / len(winners[0]))
    assert found.mean_energy == pytest.approx(np.log(np.exp(pooled).sum(0)).mean(), abs=0.05)


def test_pooled_stores_have_no_votes(tmp_path):
    store = write_store(tmp_path / "outputs", cases=1, keep="pooled")
    found = case_statistics(StoredCases(store), "case-00", CalibratedEnsemble(Pipeline.parse("ts(p)", 4)))
    assert found.votes is None
    assert found.dissent is None


def test_too_few_cases_are_told_before_networks_run(tmp_path, deployed, capsys):
    shutil.copytree(deployed, tmp_path / "deployed")
    path = tmp_path / "deployed" / "reference.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"cases": facts["cases"][:4]}))
    (tmp_path / "deployed" / "checksums.json").unlink()
    assert calibrate("monitor", "--deployed", tmp_path / "deployed", "--images", tmp_path / "nothing") == 2
    told = capsys.readouterr().err
    assert "the pipeline was deployed on 4 cases, thresholds need at least 5: deploy it again on more" in told


def test_the_command_tells_by_its_exit_code(run, deployed, tmp_path, capsys):
    assert calibrate("monitor", "--deployed", deployed, "--outputs", run / "outputs", "--json") == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["drift"] is False
    assert verdict["new_cases"] == verdict["reference_cases"] == 24
    corrupted_copy(OutputStore(run / "outputs"), tmp_path / "outputs")
    assert calibrate("monitor", "--deployed", deployed, "--outputs", tmp_path / "outputs") == 1
    assert "the data have drifted" in capsys.readouterr().out


def corrupted_copy(store, folder):
    """The same cases with noise on the members' logits."""
    m = store.manifest
    writer = OutputWriter(folder, m.dataset, m.class_names, m.spatial_dims, m.members, m.background, m.ignore_index)
    generator = torch.Generator().manual_seed(0)
    for case in store:
        noise = 4 * torch.randn(case.logits.shape, generator=generator)
        writer.write(case.case_id, case.logits + noise, case.target)
    writer.finish()


def test_bad_input_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="at least 5"):
        monitor(made_up(rng, 4), made_up(rng, 3))
    with pytest.raises(ValueError, match="no new cases"):
        monitor(made_up(rng, 9), [])
    with pytest.raises(ValueError, match="needs at least 1000"):
        monitor(made_up(rng, 9), made_up(rng, 3), resamples=100)
    with pytest.raises(ValueError, match="is missing"):
        load_statistics(tmp_path / "reference.json")
