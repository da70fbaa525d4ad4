"""Facts of a tensor are computed once while it is shared, and never mistaken for those of another."""

import pytest
import torch

from lightning_calib.calibrators import PAPER_PIPELINES, PipelineName, build
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.shared import once, shared


def counting():
    calls = []

    @once
    def double(tensor, factor=2):
        calls.append(tensor)
        return factor * tensor

    return double, calls


def test_once_within_and_anew_outside():
    double, calls = counting()
    scores, other = torch.ones(3), torch.ones(3)
    with shared(scores):
        assert double(double(scores)) is double(double(scores))
        assert len(calls) == 2
        assert double(scores, factor=3)[0] == 3
        double(other)
        double(other)
    assert len(calls) == 5
    double(scores)
    assert len(calls) == 6


def test_gradients_pass_anew():
    double, _ = counting()
    scores = torch.ones(3, requires_grad=True)
    with torch.enable_grad(), shared(scores):
        assert double(scores) is not double(scores)


def test_a_nested_tensor_hides_the_outer_one():
    first, second = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 1.0]])
    with shared(first):
        assert winning_class(first).item() == 1
        with shared(second):
            assert (winning_class(second).item(), winning_class(first).item()) == (0, 1)
        assert winning_class(first).item() == 1


@torch.no_grad()
def test_calibrators_that_share_say_what_they_say_alone():
    names = sorted({PipelineName.parse(text).calibrator for text in PAPER_PIPELINES})
    fitted = [build(name, 5) for name in names if build(name, 5).looks_at == "voxel"]
    for calibrator in fitted:
        for parameter in calibrator.parameters():
            parameter.add_(0.05 * torch.rand(parameter.shape))
        calibrator.project_()
    logits = 3 * torch.randn(1, 5, 400)
    logits[..., :40] = logits[..., :40].round()  # ties
    alone = [calibrator(logits) for calibrator in fitted]
    kept = logits.clone()
    with shared(logits):
        together = [calibrator(logits) for calibrator in fitted]
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    assert torch.equal(logits, kept)


def test_results_are_dropped_at_the_end():
    def fails(tensor):
        raise ValueError("stop")

    double, _ = counting()
    with pytest.raises(ValueError, match="stop"), shared(scores := torch.ones(2)):
        once(fails)(double(scores))
    assert double(scores) is not double(scores)
