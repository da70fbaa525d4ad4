"""One pass over all pipelines gives what the metric classes give, one pipeline at a time."""

import pytest
import torch

from lightning_calib.experiment.evaluation import Facts, TestCase, evaluate
from lightning_calib.metrics import (
    AverageCalibrationError,
    BoundaryAwareCalibrationError,
    BrierScore,
    DiceScore,
    ExpectedCalibrationError,
    FlipRate,
    NegativeLogLikelihood,
)
from tests.experiment.synthetic import set_calibrator, test_case, write_outputs

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


def facts_of(store):
    return Facts("shapes", store.manifest.ignore_index, store.manifest.background)


def evaluated(store, names=PIPELINES):
    cases = (test_case(store, case_id, "z") for case_id in store.case_ids)
    return evaluate(cases, {name: set_calibrator(name, 0) for name in names}, facts_of(store), repeat=2)


def test_scores_equal_those_of_the_metric_classes(store):
    together = evaluated(store)
    for name in PIPELINES:
        metrics = one_pipeline_at_a_time(store, name)
        for key in ("nll", "dice", "ece", "ba_ece", "brier", "flip"):
            expected = metrics[key].per_image()
            found = {row.case: getattr(row, key) for row in together[name].cases}
            assert found == pytest.approx(expected, rel=1e-12, nan_ok=True), (name, key)


def test_pooled_bins_give_the_average_calibration_error(store):
    together = evaluated(store)
    for name in PIPELINES:
        sums = torch.zeros(3, 600, dtype=torch.float64)
        for row in together[name].bins:
            sums[:, row.bin] = torch.tensor([row.count, row.correct_sum, row.confidence_sum], dtype=torch.float64)
        count, correct, confidence = sums.view(3, 15, 40).sum(dim=-1)
        gaps = ((correct - confidence) / count).abs()
        expected = one_pipeline_at_a_time(store, name)["ace"].compute()
        assert gaps[count > 0].mean().item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_pipeline_scores_the_same_alone_and_in_company(store):
    together, alone = evaluated(store), evaluated(store, ["ms(z)"])
    assert together["ms(z)"] == alone["ms(z)"]


def test_preserving_pipelines_flip_nothing_and_others_are_audited(store):
    together = evaluated(store)
    for name in ("identity(z)", "cms_op(z)", "ts(z)"):
        assert all(row.flip == 0 for row in together[name].cases)
    flips = [(row.harmful + row.beneficial + row.neutral, row.flip * row.voxels) for row in together["ms(z)"].cases]
    assert sum(count for count, _ in flips) > 0
    assert all(count == pytest.approx(share) for count, share in flips)


def test_each_case_is_read_once(store):
    reads = []

    def cases():
        for case_id in store.case_ids:
            reads.append(case_id)
            yield test_case(store, case_id, "z")

    evaluate(cases(), {name: set_calibrator(name, 0) for name in PIPELINES}, facts_of(store), 0)
    assert reads == list(store.case_ids)


def test_a_case_of_one_label_has_scores(tmp_path):
    logits = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    case = TestCase("flat", logits, torch.zeros(1, 8, 8).long(), torch.full((1, 8, 8), torch.inf))
    found = evaluate([case], {"identity(z)": set_calibrator("identity(z)", 0)}, Facts("toy"), 0)["identity(z)"]
    assert [(row.band, row.distance_sum) for row in found.bands] == [(3, float("inf"))]
    assert 0 <= found.cases[0].ba_ece <= 1
