"""Triage: facts of structures against numpy, what the ranking is learned on, figures and the report."""

import math

import numpy as np
import pytest
import torch

from lightning_calib.decisions import QualityModel
from lightning_calib.decisions.review import aurc
from lightning_calib.decisions.volumes import excess
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.build import build_report
from lightning_calib.studies.base import StudyError
from lightning_calib.studies.structures import StructureRow
from lightning_calib.studies.triage import Bias, CaseScore, Ranking, Triage, figures, scored
from tests.experiment.synthetic import write_outputs, write_results
from tests.references import decisions as slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of two repeats on 24 cases in pairs, and the study."""
    folder = tmp_path_factory.mktemp("triage")
    store = write_outputs(folder / "outputs", cases=24, ignore_index=255)
    write_results(folder / "calibration", store, ["identity(p)", "cms_op(p)"], repeats=2)
    study = Triage(folder / "calibration", folder / "outputs", display=False)
    return study, study.run(), store


def test_facts_are_those_of_the_maps(made):
    study, _, store = made
    rows = read_rows(study.folder / "structures.csv", StructureRow)
    results = Results(study.calibration)
    assert {row.structure for row in rows} == {"disc", "rod", "speck"}
    for row in rows[5::97]:
        case, label = store[row.case], store.manifest.class_names.index(row.structure)
        pooled, counted = case.pooled("p"), (case.target != 255).numpy()
        with torch.no_grad():
            probs = results.calibrator(row.repeat, row.pipeline)(pooled[None])[0].softmax(0)[label].double().numpy()
        mask, truth = (pooled.argmax(0) == label).numpy(), (case.target == label).numpy()
        members = [(member.argmax(0) == label).numpy()[counted] for member in case.logits]
        assert (row.mask, row.volume) == ((mask & counted).sum(), (truth & counted).sum())
        assert row.expected == pytest.approx(probs[counted].sum(), rel=1e-5)
        assert row.dice == pytest.approx(slow.dice(mask[counted], truth[counted]))
        assert row.certainty == pytest.approx(slow.certainty(probs, mask, counted), abs=1e-5)
        pairs = [slow.dice(members[a], members[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
        assert row.agreement == pytest.approx(np.mean(pairs))


def test_the_queue_is_learned_on_cal_and_ranks_test(made):
    study, facts, _ = made
    rows, queue = study.read("structures.csv", StructureRow), study.read("queue.csv", CaseScore)
    split = study.results.split(1)
    own = [row for row in rows if (row.repeat, row.pipeline) == (1, "cms_op(p)")]
    mine = [row for row in queue if (row.repeat, row.pipeline) == (1, "cms_op(p)")]
    assert {row.case for row in mine} == set(split["test"])
    assert [row.predicted_dice for row in mine] == sorted(row.predicted_dice for row in mine)
    cal = [row for row in own if row.case in split["cal"] and not math.isnan(row.dice)]
    model = QualityModel.fit([row.facts for row in cal], [row.dice for row in cal])
    first = [row for row in own if row.case == mine[0].case and row.mask]
    assert mine[0].predicted_dice == pytest.approx(model.predict([row.facts for row in first]).mean())
    there = [row.dice for row in own if row.case == mine[0].case and not math.isnan(row.dice)]
    assert mine[0].dice == pytest.approx(np.mean(there))
    assert facts["cases"] == len({row.case for row in queue})


def test_figures_are_those_of_the_repeats(made):
    study, _, _ = made
    queue = study.read("queue.csv", CaseScore)
    found = {(row.score, row.figure): row for row in study.read("rankings.csv", Ranking) if row.pipeline == "cms_op(p)"}
    tables = [
        np.array([[row.certainty, 1 - row.dice] for row in queue if (row.repeat, row.pipeline) == (r, "cms_op(p)")])
        for r in (0, 1)
    ]
    assert found["certainty", "aurc"].mean == pytest.approx(np.mean([slow.mean_aurc(*table.T) for table in tables]))
    assert all(len(table) == 8 for table in tables)
    halves = [table[np.argsort(table[:, 0])] for table in tables]
    caught = [half[:4, 1].sum() / half[:, 1].sum() for half in halves]
    assert found["certainty", "caught_0.5"].mean == pytest.approx(np.mean(caught))
    assert found["certainty", "risk_0.5"].mean == pytest.approx(np.mean([half[4:, 1].mean() for half in halves]))
    for row in found.values():
        assert row.low <= row.high
    rows = [r for r in study.read("structures.csv", StructureRow) if (r.pipeline, r.structure) == ("cms_op(p)", "rod")]
    (bias,) = (
        row
        for row in study.read("volumes.csv", Bias)
        if (row.pipeline, row.structure, row.of) == ("cms_op(p)", "rod", "expected")
    )
    by_repeat = []
    for r in (0, 1):
        test = [row for row in rows if row.repeat == r and row.case in study.results.split(r)["test"]]
        by_repeat.append(sum(row.expected for row in test) / sum(row.volume for row in test) - 1)
    assert bias.mean == pytest.approx(np.mean(by_repeat))


def test_the_report_shows_the_head_of_the_queue(made, tmp_path):
    study, facts, store = made
    page = build_report(study.calibration, store.path, tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    assert "Which cases to review" in text
    worst = next(
        row for row in study.read("queue.csv", CaseScore) if row.pipeline == facts["shown"] and row.repeat == 0
    )
    assert worst.case in text
    assert (page.parent / "figures" / "triage-queue.png").is_file()
    assert any(line.startswith(f"{facts['shown']}, predicted_dice") for line in study.tell(facts))


def test_structures_that_are_nowhere_and_too_few_to_learn_from():
    def row(case, mask, dice):
        return StructureRow(0, "ts(p)", case, "rod", mask, 0.5 * mask, 3.0, 1.0, 0.5, 0.5, 4, dice)

    cal = [row(f"c{n}", 5 + n, 0.5 + 0.01 * n) for n in range(10)]
    test = [row("a", 0, float("nan")), row("b", 0, 0.0), row("c", 4, 0.7)]
    split = {"cal": [f"c{n}" for n in range(10)], "val": [], "test": ["a", "b", "c"]}
    assert [score.case for score in scored([*cal, *test], split)] == ["c"]
    with pytest.raises(StudyError, match="10 structures"):
        scored(cal[1:] + test, split)
    assert np.isnan(excess(np.zeros((2, 3)))).all()
    table = np.array([[0.9, 0.1], [0.1, 0.6]])
    assert figures(table)[2] == aurc(*table.T)
