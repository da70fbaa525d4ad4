"""One pass over all pipelines gives what the metric classes give, one pipeline at a time."""

import pytest
import torch
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightning_calib.experiment.records import _band_rows
from lightning_calib.experiment.work import make_trainer
from lightning_calib.functional.flips import FLIP_KINDS
from lightning_calib.metrics import (
    AverageCalibrationError,
    BoundaryAwareCalibrationError,
    BrierScore,
    DiceScore,
    ExpectedCalibrationError,
    FlipRate,
    NegativeLogLikelihood,
)
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.tasks.evaluation import EvaluationTask, merge_states, states_of
from tests.experiment.synthetic import batch_of, evaluate, set_calibrator, write_outputs

PIPELINES = ["identity(z)", "ms(z)", "cms_op(z)", "ts(z)"]


@pytest.fixture(params=[None, 255])
def store(request, tmp_path):
    return write_outputs(tmp_path / "outputs", cases=6, ignore_index=request.param)


def metrics_of(ignore_index):
    return {
        "nll": NegativeLogLikelihood(ignore_index=ignore_index),
        "dice": DiceScore(include_background=False, background=0, ignore_index=ignore_index),
        "ece": ExpectedCalibrationError(num_bins=50, ignore_index=ignore_index),
        "ba_ece": BoundaryAwareCalibrationError(ignore_index=ignore_index),
        "brier": BrierScore(ignore_index=ignore_index),
        "flip": FlipRate(ignore_index=ignore_index),
        "ace": AverageCalibrationError(num_bins=15, ignore_index=ignore_index),
    }


def one_pipeline_at_a_time(store, name):
    """Every metric class over the cases of one pipeline."""
    metrics, calibrator = metrics_of(store.manifest.ignore_index), set_calibrator(name, 0)
    for case in store:
        logits = case.pooled("z")[None]
        log_probs = calibrator(logits).detach()
        for key, metric in metrics.items():
            more = {"reference": logits} if key == "flip" else {}
            metric.update(log_probs, case.target[None], case_ids=[case.case_id], **more)
    return metrics


def evaluated(store, names=PIPELINES):
    return evaluate(store, store.case_ids, {name: set_calibrator(name, 0) for name in names})


def test_scores_equal_those_of_the_metric_classes(store):
    together = evaluated(store)
    for name in PIPELINES:
        metrics = one_pipeline_at_a_time(store, name)
        for key in ("nll", "dice", "ece", "ba_ece", "brier", "flip"):
            expected = metrics[key].per_image()
            found = dict(zip(together[name].cases, together[name].scores[key], strict=True))
            assert found == pytest.approx(expected, rel=1e-12, nan_ok=True), (name, key)


def test_every_registered_score_is_there(store):
    found = evaluated(store)["ms(z)"]
    assert {*found.scores, *found.pooled} == set(SCORES)
    assert set(found.pooled) == {score.key for score in SCORES.values() if score.pooled}
    assert found.figures().keys() == set(SCORES)


def test_pooled_bins_give_the_average_calibration_error(store):
    together = evaluated(store)
    for name in PIPELINES:
        bins = together[name].statistics.pooled().bins
        count, correct, confidence = (column[0].view(15, 40).sum(dim=-1) for column in bins)
        gaps = ((correct - confidence) / count).abs()
        expected = one_pipeline_at_a_time(store, name)["ace"].compute()
        assert gaps[count > 0].mean().item() == pytest.approx(expected.item(), rel=1e-12)
        assert together[name].pooled["ace"] == pytest.approx(expected.item(), rel=1e-12)


def test_a_pipeline_scores_the_same_alone_and_in_company(store):
    together, alone = evaluated(store)["ms(z)"], evaluated(store, ["ms(z)"])["ms(z)"]
    assert together.scores == alone.scores
    assert together.pooled == alone.pooled


def test_preserving_pipelines_flip_nothing_and_others_are_audited(store):
    together = evaluated(store)
    for name in ("identity(z)", "cms_op(z)", "ts(z)"):
        assert set(together[name].scores["flip"]) == {0.0}
    statistics = together["ms(z)"].statistics
    counts = sum(getattr(statistics.flips, kind) for kind in FLIP_KINDS)
    assert counts.sum() > 0
    assert counts.tolist() == pytest.approx(
        (statistics.voxels * torch.tensor(together["ms(z)"].scores["flip"])).tolist()
    )


def test_a_case_of_one_label_has_scores(store):
    task = EvaluationTask({"identity(z)": set_calibrator("identity(z)", 0)})
    logits = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    batch = {"logits": logits, "target": torch.zeros(1, 8, 8).long(), "case_id": ["flat"]}
    task.test_step(batch | {"distance": torch.full((1, 8, 8), torch.inf)}, 0)
    task.conclude()
    found = task.evaluated["identity(z)"]
    rows = list(_band_rows(0, "identity(z)", found))
    assert [(row.band, row.distance_sum) for row in rows] == [(3, float("inf"))]
    assert 0 <= found.scores["ba_ece"][0] <= 1


def test_a_trainer_gives_the_same_figures(store):
    data = StoredOutputsDataModule(store, "z", cal=2, val=1)
    calibrators = {name: set_calibrator(name, 0) for name in PIPELINES}
    task = EvaluationTask(calibrators, store.manifest.ignore_index, store.manifest.background)
    trainer = make_trainer({"accelerator": "cpu"}, None)
    (logged,) = trainer.test(task, data, verbose=False)
    expected = evaluate(store, data.ids("test"), calibrators)
    for name in PIPELINES:
        assert task.evaluated[name].scores == expected[name].scores
        assert logged[f"test/{name}/nll"] == pytest.approx(expected[name].figures()["nll"], rel=1e-6)


def test_parts_are_merged_to_the_bits_of_the_whole(store):
    calibrators = {name: set_calibrator(name, 0) for name in PIPELINES}
    facts = (calibrators, store.manifest.ignore_index, store.manifest.background)
    parts = []
    for case_ids in (store.case_ids[4:], store.case_ids[:1], store.case_ids[1:4]):
        task = EvaluationTask(*facts, whole=False)
        for case_id in case_ids:
            task.test_step(batch_of(store, case_id, "z"), 0)
        parts.append(task.states())
    merged = EvaluationTask(*facts)
    merged.merge(parts)
    figures, expected = merged.conclude(), evaluated(store)
    for name in PIPELINES:
        assert merged.evaluated[name].cases == expected[name].cases
        for key, values in expected[name].scores.items():
            assert merged.evaluated[name].scores[key] == pytest.approx(values, rel=0, abs=0, nan_ok=True), key
        assert merged.evaluated[name].pooled == expected[name].pooled
        assert figures[f"test/{name}/nll"] == expected[name].figures()["nll"]


class Extremes(Metric):
    """A metric with states of every kind, as others write them."""

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("largest", torch.zeros(()), dist_reduce_fx="max")
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.add_state("seen", [], dist_reduce_fx=None)

    def update(self, values):
        self.total += values.sum()
        self.largest = torch.maximum(self.largest, values.max())
        self.rows.append(values)
        self.seen.append(values[:1])

    def compute(self):
        return self.total, self.largest, dim_zero_cat(self.rows), len(self.seen)


def test_metrics_of_others_are_merged_as_over_processes():
    whole, parts = Extremes(), []
    for group in ([[1.0, 5.0], [2.0]], [[7.0]], []):
        part = Extremes()
        for values in group:
            part.update(torch.tensor(values))
            whole.update(torch.tensor(values))
        parts.append(states_of(part))
    merged = Extremes()
    merge_states(merged, parts)
    total, largest, rows, seen = merged.compute()
    assert (total, largest, rows.tolist(), seen) == (15.0, 7.0, [1.0, 5.0, 2.0, 7.0], 3)
    assert whole.compute()[0] == total
