"""The benchmark of selections: no method sees a test group, and the figures are what they are said to be."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.writer import OutputWriter

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _regret_data
import _regret_summary
import regret


@pytest.fixture
def outputs(tmp_path):
    """Eight groups of two overconfident cases, 12 x 10 voxels, label 3 ignored."""
    groups = {f"g{n // 2}_{n % 2}": f"g{n // 2}" for n in range(16)}
    folder = tmp_path / "runs" / "toy" / "outputs"
    writer = OutputWriter(folder, "toy", ["a", "b", "c"], 2, [Member("0"), Member("1")], 0, 3, groups=groups)
    generator = torch.Generator().manual_seed(0)
    for case_id in groups:
        truth = torch.randn(3, 12, 10, generator=generator)
        target = torch.distributions.Categorical(logits=truth.movedim(0, -1)).sample()
        target[0, :3] = 3
        noise = torch.randn(2, 3, 12, 10, generator=generator)
        writer.write(case_id, 4 * truth + noise, target)
    writer.finish()
    return folder


def test_voxels_keep_their_scores_labels_and_distances(outputs, tmp_path):
    small = _regret_data.shrink(outputs, tmp_path / "small", 50)
    whole = _regret_data.StoredCases(_regret_data.OutputStore(outputs))
    case = small.store["g3_1"]
    assert case.logits.shape == (2, 3, 1, 50)
    assert (case.target != 3).all()
    everything = whole.store["g3_1"].logits.flatten(2)
    places = [
        int((everything == voxel[..., None]).all(0).all(0).nonzero()) for voxel in case.logits[:, :, 0].unbind(-1)
    ]
    assert len(set(places)) == 50
    assert torch.equal(whole.store["g3_1"].target.flatten()[places], case.target[0])
    assert torch.equal(whole.distance("g3_1").flatten()[places], small.distances["g3_1"][0])
    assert small.store.groups == whole.store.groups


def test_methods_cannot_read_test_cases(outputs, tmp_path):
    small = _regret_data.shrink(outputs, tmp_path / "small", 50)
    split = _regret_data.divide(small.store.groups, 3)
    assert [len(split.cal), len(split.val), len(split.test)] == [6, 4, 6]
    data = _regret_data.fitting_data(small, split)
    assert set(data.store.case_ids) == {*split.cal, *split.val}
    with pytest.raises(KeyError, match=f"no case '{split.test[0]}'"):
        data.cases.read(split.test[0])


def test_the_benchmark_runs_goes_on_and_fills_a_page(outputs, tmp_path, capsys):
    document = tmp_path / "page.md"
    document.write_text(f"words\n{regret.BEGIN}old\n{regret.END}more\n")
    options = {"runs": tmp_path / "runs", "datasets": ["toy"], "voxels": 40, "trials": 1, "gains": ["toy"]}
    regret.main(**options, divisions=1)
    first = tmp_path / "runs" / "regret" / "toy" / "000" / "pipelines.csv"
    written = first.stat().st_mtime_ns
    regret.main(**options, divisions=2, document=document)
    assert first.stat().st_mtime_ns == written
    text = document.read_text()
    assert text.startswith("words\n")
    assert text.endswith("more\n")
    assert "old" not in text
    assert (tmp_path / "images" / "regret.png").is_file()
    assert "2: toy, keeps 90 % of the best gain" in text
    rows = pd.read_csv(tmp_path / "runs" / "regret" / "rows.csv")
    ts, nothing = (rows[rows.method == method].nll.mean() for method in ("ts", "nothing"))
    assert ts < nothing - 0.1  # members are overconfident by a factor of four


def made_rows(**nll):
    """Rows of one data set with two groups and two divisions; a value by method, division and group."""
    rows = [
        {"dataset": "d", "division": d, "method": m, "pipeline": m.removeprefix("pipeline "), "val_nll": v, "group": g}
        | {"case": g, "nll": values[d][g == "b"], "ece": 0.0, "ba_ece": 0.0, "dice": 1.0}
        for m, (v, values) in nll.items()
        for d in (0, 1)
        for g in "ab"
    ]
    return pd.DataFrame(rows)


def test_selections_and_bars_by_hand():
    rows = made_rows(
        **{
            "pipeline identity(p)": (0.5, [[1.0, 1.0], [1.0, 1.0]]),
            "pipeline ts(p)": (0.4, [[0.8, 1.0], [1.2, 1.2]]),
            "pipeline cms_op(p)": (0.45, [[0.7, 0.7], [0.9, 0.9]]),
            "groups": (np.nan, [[0.8, 0.8], [1.0, 1.0]]),
        }
    )
    figures = _regret_summary.Figures.of(_regret_summary.with_selections(rows, "order"), "d")
    assert figures.methods == ["nothing", "paper", "groups"]
    assert figures.difference("paper", "nll").tolist() == pytest.approx([-0.1, 0.2])
    assert figures.regret("paper").tolist() == pytest.approx([0.2, 0.3])
    assert figures.best_pipeline() == "pipeline cms_op(p)"
    verdicts = {bar: (text, met) for bar, text, met in _regret_summary.bars([figures], "groups", ["d"])}
    assert verdicts["1: d, worst division loses a tenth of the paper's"] == (
        "0.0000, the paper's selection 0.2000",
        True,
    )
    assert verdicts["2: d, keeps 90 % of the best gain"] == ("0.1000 of 0.2000 (cms_op(p))", False)
    assert verdicts["3: mean regret at most half of the paper's"] == ("0.1000, the paper's selection 0.2500", True)
