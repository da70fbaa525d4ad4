"""Scores by name: one pass for all of them, their figures, and scores of strangers."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib import functional as F
from lightning_calib import metrics as M
from lightning_calib.metrics.score import ScoreMetric
from tests.metrics.workers import IGNORE, cases
from tests.references import metrics as oracle

CLASSES = {
    "nll": M.NegativeLogLikelihood,
    "dice": M.DiceScore,
    "ece": M.ExpectedCalibrationError,
    "ba_ece": M.BoundaryAwareCalibrationError,
    "ace": M.AverageCalibrationError,
    "brier": M.BrierScore,
    "flip": M.FlipRate,
    "miou": M.MeanIoU,
    "mce": M.MaximumCalibrationError,
    "classwise_ece": M.ClasswiseCalibrationError,
    "space": M.SPACE,
    "free_energy_spread": M.FreeEnergySpread,
}
KEYS = list(CLASSES)


@pytest.fixture
def batch():
    names, logits, targets = zip(*cases(), strict=True)
    return torch.stack(logits), torch.stack(targets), list(names)


def filled(batch, collection=None, order=range(5), step=5):
    logits, target, names = batch
    collection = M.score_collection(IGNORE, 1) if collection is None else collection
    for start in range(0, 5, step):
        some = list(order)[start : start + step]
        z, y = logits[some], target[some]
        collection.update(z.log_softmax(1), y, case_ids=[names[i] for i in some], reference=z.roll(1, -1))
    return collection


def accuracy(statistics, background):
    return statistics.accuracy()


def stranger(**options):
    facts = {"label": "Accuracy", "title": "accuracy", "explanation": "Share of right voxels.", "better": "higher"}
    return M.Score("accuracy", **{**facts, "arithmetic": accuracy, **options})


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(M.SCORES, "registered", {})
    return M.register_score(stranger())


def test_every_score_says_who_it_is():
    assert list(M.SCORES) == KEYS
    for key in KEYS:
        score = M.SCORES[key]
        assert score.key == key
        assert score.label
        assert score.title
        assert score.explanation.endswith(".")
    assert [s.key for s in M.SCORES.values() if s.pooled] == ["ace", "miou", "mce"]
    assert [s.key for s in M.SCORES.values() if s.compared] == ["nll", "dice", "ece", "ba_ece"]
    assert M.SCORES["ace"].interval == "smallest and largest repeat"
    assert M.SCORES["free_energy_spread"].arrow == ""


@pytest.mark.parametrize("key", KEYS)
def test_a_collection_gives_the_figures_of_the_classes(key, batch):
    logits, target, names = batch
    log_probs, reference = logits.log_softmax(1), logits.roll(1, -1)
    options = {"include_background": False, "background": 1} if key in ("dice", "miou") else {}
    alone = CLASSES[key](ignore_index=IGNORE, **options)
    more = {"reference": reference} if key in ("flip", "free_energy_spread") else {}
    alone.update(log_probs, target, names, **more)
    collection = filled(batch)
    assert collection.compute()[key] == alone.compute()
    assert collection[key].per_image() == alone.per_image()
    assert M.score_collection(IGNORE, 1, [key])[key].average == alone.average


def test_a_collection_gives_the_figures_of_the_oracle(batch):
    logits, target, _ = batch
    values = {key: value.item() for key, value in filled(batch, M.score_collection(IGNORE, None)).compute().items()}
    log_probs = logits.log_softmax(1).numpy()
    images = [oracle.voxels_of(lp, y, IGNORE) for lp, y in zip(log_probs, target.numpy(), strict=True)]
    together = [voxel for image in images for voxel in image]
    before = [z.roll(1, -1).argmax(0)[y != IGNORE].tolist() for z, y in zip(logits, target, strict=True)]
    pairs = list(zip(log_probs, target.numpy(), strict=True))
    expected = {
        "nll": np.mean([oracle.nll(image) for image in images]),
        "brier": np.mean([oracle.brier(image) for image in images]),
        "dice": np.mean([oracle.dice(image, 3) for image in images]),
        "ece": np.mean([oracle.ece(image, 50) for image in images]),
        "classwise_ece": np.mean([oracle.classwise_ece(image, 50) for image in images]),
        "flip": np.mean([oracle.flips(i, b)[0] / len(i) for i, b in zip(images, before, strict=True)]),
        "ba_ece": np.mean([oracle.ba_ece(lp, y, ignore_index=IGNORE) for lp, y in pairs]),
        "space": np.mean([oracle.space(lp, y, 2.0, IGNORE) for lp, y in pairs]),
        "ace": oracle.ace(together, 15),
        "mce": oracle.mce(together, 15),
        "miou": oracle.iou(together, 3),
        "free_energy_spread": np.mean(
            [
                oracle.free_energy_std(z.roll(1, -1).numpy(), y.numpy(), IGNORE)
                for z, y in zip(logits, target, strict=True)
            ]
        ),
    }
    assert values == pytest.approx(expected, rel=1e-5)


def test_one_pass_from_the_first_update_on(batch, monkeypatch):
    calls = []
    real = F.image_statistics
    monkeypatch.setattr(
        "lightning_calib.metrics.statistics.image_statistics", lambda *a, **k: calls.append(1) or real(*a, **k)
    )
    filled(batch)
    assert len(calls) == 1


@given(st.permutations(range(5)), st.integers(1, 5))
def test_order_and_batch_split_do_not_change_a_bit_of_a_collection(order, step):
    names, logits, targets = zip(*cases(), strict=True)
    given = torch.stack(logits), torch.stack(targets), list(names)
    whole, parts = filled(given), filled(given, order=order, step=step)
    assert whole.compute() == parts.compute()
    assert all(whole[key].per_image() == parts[key].per_image() for key in KEYS)


def test_statistics_come_by_case(batch):
    logits, target, names = batch
    collection = filled(batch, order=[4, 2, 0, 1, 3], step=2)
    found, statistics = collection["nll"].statistics()
    distance = F.boundary_distance(target, IGNORE)
    options = {"reference": logits.roll(1, -1), "distance": distance, "classwise": True, "class_bins": 50}
    options["sigma"] = 2.0
    direct = F.image_statistics(logits.log_softmax(1), target, ignore_index=IGNORE, **options)
    assert found == sorted(names)
    assert all(torch.equal(a, b) for a, b in zip(statistics.tensors(), direct.tensors(), strict=True))
    assert M.score_collection(None, None)["nll"].statistics()[0] == []


def test_rows_are_small(batch):
    collection = filled(batch)
    rows = sum(t.nbytes for t in collection["nll"].counts + collection["nll"].sums)
    assert rows / 5 < 8 * (3 * 600 + 3 * 3 * 50 + 3 * 3 + 50)
    assert M.score_collection(None, None, ["ece"])["ece"].contents == M.statistics.Contents()


def test_a_registered_score_is_in_every_collection(registered, batch):
    collection = filled(batch)
    assert isinstance(collection["accuracy"], ScoreMetric)
    assert collection["accuracy"].higher_is_better
    direct = F.image_statistics(batch[0].log_softmax(1), batch[1], ignore_index=IGNORE).accuracy()
    assert list(collection["accuracy"].per_image().values()) == direct.tolist()
    assert collection.compute()["accuracy"] == direct.mean()


def test_a_score_may_bring_a_metric_of_its_own(batch):
    own = stranger(arithmetic=None, metric=M.NegativeLogLikelihood)
    collection = filled(batch, M.score_collection(IGNORE, None, ["nll", own]))
    assert collection.compute()["accuracy"] == collection.compute()["nll"]


def test_wrong_scores_are_refused(registered):
    with pytest.raises(ValueError, match="'accuracy' already"):
        M.register_score(stranger(label="Another"))
    with pytest.raises(ValueError, match="either arithmetic= or metric="):
        stranger(arithmetic=None)
    with pytest.raises(ValueError, match="must be a name"):
        M.Score("my score", "", "", "", None, arithmetic=accuracy)
    with pytest.raises(ValueError, match="is no Score"):
        M.SCORES.register("other", accuracy)
    with pytest.raises(ValueError, match="cannot be registered as 'other'"):
        M.SCORES.register("other", stranger())
    with pytest.raises(ValueError, match="did you mean ece"):
        M.score_collection(None, None, ["ecf"])


def test_free_energy_is_one_of_logits(batch):
    logits, target, _ = batch
    collection = M.score_collection(IGNORE, None, ["free_energy_spread"])
    with pytest.raises(ValueError, match="raw pooled logits, not of classes"):
        collection.update(logits.log_softmax(1), target, reference=target)


def test_collections_travel(registered, batch):
    collection = filled(batch)
    assert pickle.loads(pickle.dumps(collection)).compute() == collection.compute()
