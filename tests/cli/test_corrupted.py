"""train.py predict --corruption: a store with the same cases and labels, and other scores."""

import json

import pytest

from lightning_calib.cli.corrupted import corrupted
from lightning_calib.cli.run_folder import RunError
from lightning_calib.datasets.corruptions import Corruption
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.datasets.shapes3d import Shapes3D
from lightning_calib.outputs.store import OutputStore
from tests.training import refused, tiny_config, train


def test_predict_writes_a_corrupted_store_beside_the_clean_one(tmp_path, capsys):
    config = tiny_config(tmp_path, epochs=1, pool=6)
    train("fit", config)
    train("predict", config)
    train("predict", config, "--corruption", "strong")
    run = tmp_path / "runs" / "tiny"
    clean, strong = OutputStore(run / "outputs"), OutputStore(run / "outputs-strong")
    assert clean.case_ids == strong.case_ids
    assert (clean.manifest.dataset, strong.manifest.dataset) == ("shapes", "shapes-strong")
    assert clean.manifest.members == strong.manifest.members
    for before, after in zip(clean, strong, strict=True):
        assert before.target.equal(after.target)
        assert not before.logits.equal(after.logits)
    facts = json.loads((run / "outputs-strong" / "corruption.json").read_text())
    assert facts["kinds"] == {name: Corruption("strong").kind(name) for name in clean.case_ids}
    assert facts["parameters"]["blur"] == {"size": 13, "sigma": 3.0}
    refused(
        capsys,
        r"another run \(dataset: 'shapes-strong' there, 'shapes-strong-seed5' now",
        "predict",
        config,
        "--corruption",
        "strong",
        "--corruption_seed",
        "5",
    )


def test_what_cannot_be_corrupted_is_refused(tmp_path):
    with pytest.raises(RunError, match="shapes3d has none"):
        corrupted(Shapes3D(num_train=1, num_val=1, num_pool=1, size=(8, 8, 8)), tmp_path, "mild")
    taken = Shapes(num_train=1, num_val=1, num_pool=1, raw_transform=Corruption("mild"))
    with pytest.raises(RunError, match="both change the raw images"):
        corrupted(taken, tmp_path, "mild")
