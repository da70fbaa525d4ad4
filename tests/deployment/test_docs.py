"""The commands of docs/deploying.md and docs/decisions.md run as they stand."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file

import lightning_calib as lc
from lightning_calib.calibrators import Pipeline
from lightning_calib.deployment import CalibratedEnsemble, DeploymentError
from tests.deployment.runs import calibrate

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name, run, folder, monkeypatch, capsys):
    """Run the commands of a page where its paths lead to a small run."""
    (commands,) = re.findall(r"```bash\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    (folder / "runs").mkdir()
    (folder / "runs" / "shapes").symlink_to(run)
    monkeypatch.chdir(folder)
    for line in commands.splitlines():
        assert calibrate(*shlex.split(line)[2:]) == 0, capsys.readouterr().err


def test_the_worked_example_runs(run, tmp_path, monkeypatch, capsys):
    run_page("deploying.md", run, tmp_path, monkeypatch, capsys)
    assert CalibratedEnsemble.load("runs/shapes/deployed").pipeline.pooling == "p"
    assert len(list(Path("maps").glob("*.safetensors"))) == 24
    assert Path("runs/shapes/deployed/pipeline.pt2").is_file()


def test_the_decisions_are_made(run, tmp_path, monkeypatch, capsys):
    run_page("decisions.md", run, tmp_path, monkeypatch, capsys)
    written = [load_file(path) for path in Path("maps").glob("*.safetensors")]
    assert len(written) == 24
    assert all({"foreground_outer", "foreground_inner", "foreground_chosen"} <= set(maps) for maps in written)
    rows = pandas.read_csv("maps/structures.csv")
    assert {"low", "high", "predicted_dice"} <= set(rows)
    a_loaded_model_decides_the_same(run, rows)


def a_loaded_model_decides_the_same(run, rows):
    """As ``apply`` has written: from the scores of a case, and from its picture."""
    model, store = lc.load_model("runs/shapes/checked"), lc.OutputStore(run / "outputs")
    for case_id in sorted(set(rows["case"]))[:3]:
        files, picture = load_file(f"maps/{case_id}.safetensors"), run / "pictures" / f"{case_id}.png"
        found, drawn = model.decide_scores(store[case_id].logits, case=case_id), model.decide(picture)
        assert (found.case, drawn.case) == (case_id, case_id)
        assert set(found.masks) == {"mask", "foreground_outer", "foreground_inner", "foreground_chosen"}
        for name, mask in found.masks.items():
            assert torch.equal(mask, files[name].to(mask))
            assert (drawn.masks[name] != mask).float().mean() < 0.01  # the networks round in another order
        expected = rows[rows["case"] == case_id].set_index("structure")
        numbers = [name for name in expected if name not in ("case", "unit")]
        for table, error in ((found.table(), 1e-6), (drawn.table(), 0.05)):
            there = table.loc[expected.index, numbers].astype(float)
            np.testing.assert_allclose(there, expected[numbers].astype(float), rtol=error, atol=error)
        assert case_id in repr(found)
        assert "foreground_outer" in found._repr_html_()


def test_decisions_need_a_folder():
    model = CalibratedEnsemble(Pipeline.parse("ts(p)", num_classes=3))
    with pytest.raises(DeploymentError, match="not loaded from a deployed folder"):
        model.decide_scores(torch.zeros(2, 3, 4, 4))
