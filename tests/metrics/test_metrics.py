"""The classes: the figures of the functions, whatever the batches, their order and their company."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from lightning_calib import functional as F
from lightning_calib import metrics as M
from tests.metrics.workers import IGNORE, cases

FUNCTIONS = {
    M.NegativeLogLikelihood: F.negative_log_likelihood,
    M.BrierScore: F.brier_score,
    M.DiceScore: F.dice_score,
    M.MeanIoU: F.mean_iou,
    M.ExpectedCalibrationError: F.expected_calibration_error,
    M.AverageCalibrationError: F.average_calibration_error,
    M.MaximumCalibrationError: F.maximum_calibration_error,
    M.ClasswiseCalibrationError: F.classwise_calibration_error,
    M.BoundaryAwareCalibrationError: F.boundary_aware_calibration_error,
    M.SPACE: F.space_error,
}
POOLABLE = [c for c in FUNCTIONS if c not in (M.BoundaryAwareCalibrationError, M.SPACE)]


@pytest.fixture
def batch():
    names, logits, targets = zip(*cases(), strict=True)
    return torch.stack(logits).log_softmax(1), torch.stack(targets), list(names)


@pytest.mark.parametrize("cls", FUNCTIONS, ids=lambda c: c.__name__)
def test_classes_give_the_figures_of_the_functions(cls, batch):
    log_probs, target, names = batch
    metric = cls(ignore_index=IGNORE)
    metric.update(log_probs[:2], target[:2], case_ids=names[:2])
    metric.update(log_probs[2:], target[2:], case_ids=names[2:])
    expected = FUNCTIONS[cls](log_probs, target, ignore_index=IGNORE)
    assert metric.compute().item() == pytest.approx(expected.item(), rel=1e-12)
    options = {"average": "image"} if cls in POOLABLE else {}
    alone = [
        FUNCTIONS[cls](log_probs[i : i + 1], target[i : i + 1], ignore_index=IGNORE, **options).item()
        for i in range(len(names))
    ]
    assert metric.per_image() == pytest.approx(dict(zip(names, alone, strict=True)), rel=1e-12)
    assert metric.num_undefined() == 0
    assert cls(ignore_index=IGNORE)(log_probs, target) == metric.compute()


@pytest.mark.parametrize("cls", POOLABLE, ids=lambda c: c.__name__)
def test_pooling_all_voxels(cls, batch):
    log_probs, target, _ = batch
    metric = cls(ignore_index=IGNORE, average="pool")
    metric(log_probs[:3], target[:3])  # forward keeps the state too
    metric(log_probs[3:], target[3:])
    expected = FUNCTIONS[cls](log_probs, target, ignore_index=IGNORE, average="pool")
    flat = FUNCTIONS[cls](log_probs.movedim(1, -1).reshape(-1, 3), target.reshape(-1), ignore_index=IGNORE)
    assert metric.compute().item() == pytest.approx(expected.item(), rel=1e-12)
    assert metric.compute().item() == pytest.approx(flat.item(), rel=1e-12)


@given(st.permutations(range(5)), st.integers(1, 5))
def test_order_and_batch_split_do_not_change_a_bit(order, size):
    names, logits, targets = zip(*cases(), strict=True)
    results = []
    for sequence, step in ((range(5), 5), (order, size)):
        metric = M.ExpectedCalibrationError(ignore_index=IGNORE)
        for start in range(0, 5, step):
            chosen = list(sequence)[start : start + step]
            log_probs = torch.stack([logits[i] for i in chosen]).log_softmax(1)
            metric.update(log_probs, torch.stack([targets[i] for i in chosen]), [names[i] for i in chosen])
        results.append((metric.compute().item(), metric.per_image()))
    assert results[0] == results[1]


def test_a_case_counts_once_and_contradictions_are_refused(batch):
    log_probs, target, names = batch
    metric = M.NegativeLogLikelihood(ignore_index=IGNORE)
    metric.update(log_probs, target, names)
    once = metric.compute()
    metric.update(log_probs[:2], target[:2], names[:2])
    assert metric.compute() == once
    metric.update(log_probs[:1], target[:1], names[1:2])
    with pytest.raises(ValueError, match="case 'case_1' was given twice with different results"):
        metric.compute()


def test_every_class_has_its_iou():
    """Two images; class 2 is in neither target nor prediction."""
    log_probs = torch.tensor([[[0.6, 0.6, 0.1, 0.3]], [[0.3, 0.3, 0.8, 0.6]], [[0.1, 0.1, 0.1, 0.1]]]).log()
    log_probs = log_probs.permute(1, 0, 2).repeat(2, 1, 1)  # predicts 0 0 1 1, twice
    target = torch.tensor([[0, 1, 1, 1], [0, 0, IGNORE, 0]])
    for average, expected in (("pool", [3 / 5, 2 / 4]), ("image", [(1 / 2 + 2 / 3) / 2, (2 / 3 + 0) / 2])):
        metric = M.MeanIoU(ignore_index=IGNORE, average=average)
        with pytest.raises(ValueError, match="update"):
            metric.per_class()
        metric.update(log_probs, target, ["a", "b"])
        assert metric.per_class()[:2].tolist() == pytest.approx(expected)
        assert math.isnan(metric.per_class()[2])


def test_images_without_names_are_all_kept(batch):
    log_probs, target, _ = batch
    metric = M.NegativeLogLikelihood(ignore_index=IGNORE)
    metric.update(log_probs[:1], target[:1])
    metric.update(log_probs[:1], target[:1])
    assert list(metric.per_image()) == ["#0", "#1"]


def test_one_pass_serves_all_metrics_of_a_collection(batch, monkeypatch):
    log_probs, target, names = batch
    kinds = [
        M.NegativeLogLikelihood,
        M.BrierScore,
        M.DiceScore,
        M.MeanIoU,
        M.ExpectedCalibrationError,
        M.AverageCalibrationError,
        M.MaximumCalibrationError,
        M.ReliabilityDiagram,
    ]
    collection = MetricCollection({kind.__name__: kind(ignore_index=IGNORE) for kind in kinds})
    collection.update(log_probs[:1], target[:1], case_ids=names[:1])
    assert len(collection.compute_groups) == 1
    calls = []
    real = F.image_statistics
    monkeypatch.setattr(
        "lightning_calib.metrics.statistics.image_statistics", lambda *a, **k: calls.append(1) or real(*a, **k)
    )
    collection.update(log_probs[1:], target[1:], case_ids=names[1:])
    assert len(calls) == 1
    values = collection.compute()
    for kind in kinds[:-1]:
        expected = FUNCTIONS[kind](log_probs, target, ignore_index=IGNORE).item()
        assert values[kind.__name__].item() == pytest.approx(expected, rel=1e-12)
        assert list(collection[kind.__name__].per_image()) == sorted(names)


def test_bin_counts_that_nest_share_one_table(batch):
    log_probs, target, _ = batch
    collection = MetricCollection({str(b): M.ExpectedCalibrationError(b) for b in (15, 20, 30, 40, 50, 64)})
    collection.update(log_probs, target.clamp(max=2))
    groups = sorted(sorted(group) for group in collection.compute_groups.values())
    assert groups == [["15", "20", "30", "40", "50"], ["64"]]
    for bins, value in collection.compute().items():
        direct = F.expected_calibration_error(log_probs, target.clamp(max=2), int(bins))
        assert value.item() == pytest.approx(direct.item(), rel=1e-12)


def test_metrics_that_agree_on_the_first_batch_only_are_kept_apart(batch):
    """torchmetrics groups by equal states after one batch; another ignore_index shows only later."""
    log_probs, target, _ = batch
    collection = MetricCollection({"all": M.NegativeLogLikelihood(), "some": M.NegativeLogLikelihood(ignore_index=0)})
    collection.update(log_probs[:1], target[:1].clamp(1, 2))
    collection.update(log_probs[1:], target[1:].clamp(0, 2))
    assert len(collection.compute_groups) == 2
    assert collection.compute()["all"] != collection.compute()["some"]


def test_flips_need_a_reference_and_give_an_audit(batch):
    log_probs, target, names = batch
    metric = M.FlipRate(ignore_index=IGNORE)
    with pytest.raises(ValueError, match="pass the pooled logits as reference="):
        metric.update(log_probs, target)
    metric.update(log_probs, target, names, reference=log_probs)
    assert metric.compute() == 0
    assert all(math.isnan(share) for share in metric.audit().values())
    metric.reset()
    metric.update(log_probs, target, names, reference=log_probs.roll(1, 1))
    table = F.flip_table(log_probs, target, log_probs.roll(1, 1).argmax(1), IGNORE)
    assert metric.compute().item() == pytest.approx(table.rate().mean().item())
    assert metric.audit()["harmful"] == pytest.approx((table.harmful.sum() / table.flips().sum()).item())
    assert sum(metric.audit().values()) == pytest.approx(1)


def test_free_energy_spread_of_images_and_its_quartiles():
    metric = M.FreeEnergySpread()
    logits = torch.randn(4, 3, 50, dtype=torch.float64)
    logits = logits.log_softmax(1) + torch.randn(4, 1, 50, dtype=torch.float64) * torch.arange(1.0, 5)[:, None, None]
    for image in logits:
        metric.update(image[None])
    spreads = logits.logsumexp(1).std(dim=1, correction=0)
    assert metric.compute().item() == pytest.approx(spreads.mean().item())
    expected = spreads.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(metric.quartiles(), expected)


def test_undefined_images_are_counted_and_named(batch):
    log_probs, target, names = batch
    metric = M.ExpectedCalibrationError(ignore_index=IGNORE)
    metric.update(log_probs, target.index_fill(0, torch.tensor([1]), IGNORE), names)
    with pytest.warns(UserWarning, match="Images: case_1"):
        value = metric.compute()
    assert not value.isnan()
    assert metric.num_undefined() == 1
    assert math.isnan(metric.per_image()["case_1"])


def test_no_images_give_nan():
    metric = M.ExpectedCalibrationError()
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert metric.compute().isnan()
    assert metric.per_image() == {}


def test_state_survives_copies_moves_and_reset(batch):
    log_probs, target, names = batch
    metric = M.ExpectedCalibrationError(ignore_index=IGNORE)
    metric.update(log_probs, target, names)
    value = metric.compute()
    for other in (pickle.loads(pickle.dumps(metric)), metric.clone(), metric.clone().half().to("cpu")):
        assert other.compute() == value
        other.update(log_probs[:1], target[:1], names[:1])
        assert other.compute() == value
    metric.reset()
    assert metric.per_image() == {}


def test_rows_stay_on_the_cpu_where_a_device_has_no_float64(batch):
    """The meta device stands in for one that cannot hold the rows."""
    log_probs, target, names = batch
    metric = M.ExpectedCalibrationError(ignore_index=IGNORE)
    metric.update(log_probs, target, names)
    moved = metric.to("meta")
    assert moved.device.type == "meta"
    assert {state.device.type for state in moved.sums + moved.counts} == {"cpu"}
    assert len(moved.per_image()) == 5


def test_memory_does_not_depend_on_voxels():
    sizes = []
    for side in (8, 64):
        metric = M.ExpectedCalibrationError()
        log_probs = torch.randn(1, 4, side, side).log_softmax(1)
        metric.update(log_probs, torch.randint(0, 4, (1, side, side)))
        sizes.append(sum(t.nbytes for t in metric.names + metric.counts + metric.sums))
    assert sizes[0] == sizes[1] < 16 * 1024


def test_bad_arguments_are_named(batch):
    log_probs, target, names = batch
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        M.ExpectedCalibrationError(num_bins=0)
    with pytest.raises(ValueError, match="unknown average"):
        M.NegativeLogLikelihood(average="mean")
    with pytest.raises(ValueError, match="Unexpected keyword"):
        M.NegativeLogLikelihood(ignor_index=255)
    metric = M.NegativeLogLikelihood(ignore_index=IGNORE)
    with pytest.raises(ValueError, match="2 case ids for 5 images"):
        metric.update(log_probs, target, names[:2])
    with pytest.raises(ValueError, match="NUL"):
        metric.update(log_probs[:1], target[:1], ["a\0b"])
    metric.update(log_probs, target, names)
    with pytest.raises(ValueError, match="number of classes differs"):
        metric.update(torch.zeros(1, 4, 8, 6).log_softmax(1), target[:1])
