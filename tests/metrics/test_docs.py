"""The snippets of docs/metrics.md run as they stand."""

import re
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from lightning_calib.metrics import SCORES

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_module_of_the_page_logs_its_scores(tmp_path):
    names = {}
    exec(SNIPPETS[0], names)
    g = torch.Generator().manual_seed(0)
    cases = [
        {
            "image": torch.randn(3, 16, 16, generator=g),
            "target": torch.randint(0, 5, (16, 16), generator=g),
            "case_id": f"case_{i}",
        }
        for i in range(4)
    ]
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet)
    module = names["Segmenter"]()
    logged = trainer.test(module, DataLoader(cases, batch_size=2), verbose=False)[0]
    assert set(logged) == {"cal/ECE", "cal/ACE", "cal/NLL", "seg/Dice"}
    assert list(module.errors) == ["case_0", "case_1", "case_2", "case_3"]
    assert sum(module.errors.values()) / 4 == pytest.approx(logged["cal/ECE"], rel=1e-6)


def test_scores_of_the_page(monkeypatch):
    monkeypatch.setattr(SCORES, "registered", {})
    names = {}
    exec(SNIPPETS[1], names)
    assert list(names["cases"]) == ["a", "b"]
    assert set(names["values"]) == {*SCORES.ours, "sure_and_wrong"}
    assert 0 < names["values"]["sure_and_wrong"] < 1


def test_functions_of_the_page():
    names = {}
    exec(SNIPPETS[2], names)
    assert names["ece"] == pytest.approx(names["by_bins"][50].mean().item())
    assert names["per_image"].shape == (2,)
    assert set(names["audit"]) == {"harmful", "beneficial", "neutral"}
