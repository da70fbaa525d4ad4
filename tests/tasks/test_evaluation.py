"""Scores under a Trainer are those of slow references that share no code with them."""

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer

from lightning_calib.calibrators import build
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.tasks.evaluation import EvaluationTask
from tests.references import metrics as oracle
from tests.stores import write_store
from tests.tasks.test_calibration import SILENT


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    store = write_store(tmp_path_factory.mktemp("evaluation") / "outputs")
    data = StoredOutputsDataModule(store, pooling="z", cal=4, val=2)
    calibrator = build("ms", data.num_classes)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        calibrator.weight.add_(0.3 * torch.randn(calibrator.weight.shape, generator=generator))
    task = EvaluationTask({"plain": build("identity", data.num_classes), "ms": calibrator}, data.ignore_index)
    (logged,) = Trainer(**SILENT).test(task, data, verbose=False)
    images = {
        label: [
            oracle.voxels_of(each(logits).detach()[0], target[0], data.ignore_index)
            for logits, target, _ in data.batches("test")
        ]
        for label, each in zip(task.labels, task.calibrators, strict=True)
    }
    return task, logged, images


@pytest.mark.parametrize("label", ["plain", "ms"])
def test_figures_are_those_of_the_references(judged, label):
    task, logged, images = judged
    found, cases = task.evaluated[label].figures(), images[label]
    assert found["nll"] == pytest.approx(np.mean([oracle.nll(v) for v in cases]), abs=1e-6)
    assert found["ece"] == pytest.approx(np.mean([oracle.ece(v, 50) for v in cases]), abs=1e-6)
    assert found["mce"] == pytest.approx(oracle.mce([v for image in cases for v in image], 15), abs=1e-6)
    assert found["classwise_ece"] == pytest.approx(np.mean([oracle.classwise_ece(v, 50) for v in cases]), abs=1e-6)
    assert set(found) == set(SCORES)
    assert logged[f"test/{label}/nll"] == pytest.approx(found["nll"], rel=1e-6)


def test_only_the_calibrator_that_may_flips(judged):
    task, _, _ = judged
    assert task.evaluated["plain"].figures()["flip"] == 0 < task.evaluated["ms"].figures()["flip"]
