"""Calibrators that take turns at chunks of an image are judged as by their maps, one after the other."""

import pytest
import torch

from lightning_calib.calibrators import build
from lightning_calib.functional import boundary_distance, image_statistics
from lightning_calib.functional.boundary import BANDS
from lightning_calib.functional.statistics import Contents
from lightning_calib.metrics import NegativeLogLikelihood
from lightning_calib.metrics.score import SCORES, Score, register_score
from lightning_calib.tasks.evaluation import EvaluationTask
from lightning_calib.tasks.judging import Judging
from tests.features import features_like

IGNORED, CLASSES = 255, 4


def calibrators():
    """Of all kinds: voxels, neighbourhoods, features; away from the identity."""
    torch.manual_seed(0)
    fitted = [build(name, CLASSES) for name in ("identity", "lts_ti", "cms_op", "ets", "fts_pooled", "cdc", "lts")]
    with torch.no_grad():
        for calibrator in fitted:
            for parameter in calibrator.parameters():
                parameter.add_(0.02 * torch.rand(parameter.shape))
            calibrator.project_()
    return fitted


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_turns_are_maps(dtype, monkeypatch):
    monkeypatch.setattr("lightning_calib.functional.voxels.CHUNK_VALUES", 1000)  # several chunks an image
    fitted = calibrators()
    logits = (3 * torch.randn(2, CLASSES, 23, 31)).to(dtype)
    target = torch.randint(0, CLASSES, (2, 23, 31)).masked_fill(torch.rand(2, 23, 31) < 0.1, IGNORED)
    names = next(each.feature_names for each in fitted if each.feature_names)
    features, distance = features_like(logits.float(), len(names)), boundary_distance(target, IGNORED)
    held = Contents(class_bins=50, flips=True, bands=BANDS, sigma=2.0)
    judging = Judging(fitted, names, IGNORED, held)
    options = {"reference": logits, "distance": distance, "classwise": True, "class_bins": 50, "sigma": 2.0}
    given = judging(logits, target, features, distance)
    made = judging(logits, target, features, None)  # distances are computed where they are not at hand
    assert all(
        torch.equal(a, b)
        for x, y in zip(given, made, strict=True)
        for a, b in zip(x.tensors(), y.tensors(), strict=True)
    )
    for calibrator, found in zip(fitted, given, strict=True):
        seen = judging.log_probs(calibrator, logits, features)
        expected = image_statistics(seen, target, ignore_index=IGNORED, **options)
        for one, other in zip(found.tensors(), expected.tensors(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


def test_a_score_with_a_metric_of_its_own_sees_the_maps(monkeypatch):
    monkeypatch.setattr(SCORES, "registered", {})
    texts = {"label": "Own", "title": "own", "explanation": "The NLL again.", "better": "lower"}
    register_score(Score("own", **texts, metric=NegativeLogLikelihood))
    fitted = calibrators()[2]
    task = EvaluationTask({"it": fitted}, IGNORED, scores=["nll", "own"])
    batch = {"logits": 3 * torch.randn(1, CLASSES, 9, 9), "target": torch.randint(0, CLASSES, (1, 9, 9))}
    task.test_step(batch | {"case_id": ["a"]}, 0)
    figures = task.conclude()
    assert figures["test/it/own"] == pytest.approx(figures["test/it/nll"], abs=1e-9)
