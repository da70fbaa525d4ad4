"""docs/extending.md is one program: what it adds is used by an experiment, a study and the report."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_calib.calibrators import CALIBRATORS
from lightning_calib.deployment.writers import WRITERS, writer_for
from lightning_calib.executors.base import EXECUTORS
from lightning_calib.experiment.tracking.trackers import TRACKERS
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.build import build_report
from lightning_calib.report.studies import STUDIES
from tests.deployment.test_writers import case_maps
from tests.experiment.settings import small_experiment
from tests.experiment.synthetic import write_outputs

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The page's Python as a module; what it registers is gone after the test."""
    for each in (CALIBRATORS, SCORES, STUDIES, EXECUTORS, TRACKERS, WRITERS):
        monkeypatch.setattr(each, "registered", dict(each.registered))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "extending_example.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("extending_example")
    sys.modules.pop("extending_example")


def test_everything_on_the_page_is_used(example, tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=10)
    results = small_experiment(store.path, pipelines=["identity(p)", "power(p)"], repeats=1, trials=1).run(
        executor="in_turn", logger="lightning_csv", display=False
    )
    assert results.failures == []
    assert isinstance(results.calibrator(0, "power(p)"), example.Power)
    assert 0 < results.table().set_index("pipeline").accuracy["power(p)"] <= 1
    assert "accuracy" in {row["metric"] for row in results.summary["comparisons"]} or not results.summary["comparisons"]
    assert list((tmp_path / "tracking" / "lightning_csv").rglob("metrics.csv"))
    study = example.Hardest(results.folder)
    facts = study.run(count=2)
    assert len(facts["cases"]) == 2
    page = build_report(results.folder, store.path, tmp_path / "report").read_text(encoding="utf-8")
    assert "Hardest cases" in page
    assert "Share of voxels whose predicted class is right." in page
    assert "robabilities to a power" in page


def test_the_format_of_maps_on_the_page_writes_them(example, tmp_path):
    maps = case_maps()
    (path,) = writer_for(maps).write(tmp_path / "a", maps, "float32", probabilities=True)
    held = np.load(path)
    np.testing.assert_array_equal(held["probs"], maps.probs.numpy())
    np.testing.assert_array_equal(held["mask"], maps.mask.numpy())
