"""Declared preservation holds for any parameters and any logits, to the last tie."""

import pytest
import torch
from hypothesis import given, settings

from lightning_calib.calibrators import Calibrator
from tests.calibrators.helpers import (
    ORDERED,
    PRESERVING,
    class_counts,
    hard_logits,
    input_dtypes,
    kinds,
    randomized,
    scales,
    seeds,
)
from tests.features import build


def inversions(log_probs, logits):
    """Number of pairs of classes whose strict order is turned around."""
    before = logits.double().unsqueeze(1) > logits.double().unsqueeze(2)
    after = log_probs.unsqueeze(1) < log_probs.unsqueeze(2)
    return int((before & after).sum())


@pytest.mark.parametrize("name", PRESERVING)
@given(seed=seeds, kind=kinds, num_classes=class_counts, dtype=input_dtypes, scale=scales)
def test_no_argmax_changes(name, seed, kind, num_classes, dtype, scale):
    calibrator = randomized(name, num_classes, seed, scale)
    logits = hard_logits(seed, kind, num_classes, dtype)
    log_probs = calibrator(logits)
    assert torch.equal(log_probs.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("name", ORDERED)
@given(seed=seeds, kind=kinds, num_classes=class_counts, dtype=input_dtypes, scale=scales)
def test_no_pair_inverts(name, seed, kind, num_classes, dtype, scale):
    logits = hard_logits(seed, kind, num_classes, dtype)
    assert inversions(randomized(name, num_classes, seed, scale)(logits), logits) == 0


@pytest.mark.parametrize("name", ["cms_ap", "cms_op"])
@given(seed=seeds, kind=kinds, num_classes=class_counts)
@settings(max_examples=25)
def test_softplus_form_keeps_the_argmax_too(name, seed, kind, num_classes):
    calibrator = randomized(name, num_classes, seed, 5.0, parametrization="softplus")
    logits = hard_logits(seed, kind, num_classes)
    assert torch.equal(calibrator(logits).argmax(1), logits.argmax(1))


@pytest.mark.parametrize("name", PRESERVING)
@pytest.mark.parametrize("value", [-1e38, -1.0, 0.0, 1e38])
def test_extreme_parameters_cannot_break_it(name, value):
    calibrator = build(name, 5)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.fill_(value if name not in ("lts", "lts_ti") else max(min(value, 1e3), -1e3))
    for kind in ("ties", "equal", "huge", "neighbours", "normal"):
        logits = hard_logits(7, kind, 5)
        log_probs = calibrator(logits)
        assert torch.isfinite(log_probs).all()
        assert torch.equal(log_probs.argmax(1), logits.argmax(1))


class Careless(Calibrator):
    """Declares order and rounds badly: every value is off by up to an ulp."""

    name = "careless"
    preserves = "order"

    def calibrate(self, logits):
        log_probs = logits.log_softmax(1)
        noise = torch.randint(0, 2, log_probs.shape, generator=torch.Generator().manual_seed(0)).bool()
        return torch.where(noise, torch.nextafter(log_probs, torch.full_like(log_probs, torch.inf)), log_probs)


def test_the_base_class_mends_what_a_subclass_rounds_badly():
    calibrator, logits = Careless(5), hard_logits(2, "neighbours", 5)
    logits[:, 0] = 30.0
    assert inversions(calibrator.calibrate(calibrator.start(logits)), logits) > 0
    assert inversions(calibrator(logits), logits) == 0


@pytest.mark.parametrize("name", ["vs", "ms", "ms_c", "dc", "cdc"])
def test_unconstrained_calibrators_do_flip(name):
    logits = hard_logits(1, "normal", 5)
    flips = [(randomized(name, 5, seed)(logits).argmax(1) != logits.argmax(1)).sum() for seed in range(5)]
    assert max(flips) > 0


def test_argmax_preserving_scaling_may_reorder_the_rest():
    logits = hard_logits(3, "normal", 6)
    assert inversions(randomized("cms_ap", 6, 0)(logits), logits) > 0


@pytest.mark.parametrize("name", PRESERVING)
def test_repair_leaves_gradients_alone(name):
    logits = hard_logits(0, "ties", 4).requires_grad_()
    calibrator = randomized(name, 4, 0)
    repaired = calibrator(logits)
    (gradient,) = torch.autograd.grad(repaired.square().sum(), logits)
    assert torch.isfinite(gradient).all()
    assert (gradient != 0).any()


def test_logits_an_ulp_apart_keep_their_order_and_the_sum_of_probabilities():
    """The shift by the maximum makes two of them equal, and equal ones go by index."""
    calibrator = build("cms_op", 4)
    with torch.no_grad():
        calibrator.bias_gaps.fill_(1.0)  # neighbours in rank are one apart, equal or not
    logits = torch.tensor([[5.205684662, 1.816333175, 1.816333294, 0.0]])
    assert logits[0, 1] < logits[0, 2]
    assert torch.equal(*(logits - 5.205684662)[0, 1:3])
    log_probs = calibrator(logits).detach()
    assert log_probs[0, 2] > log_probs[0, 1]
    torch.testing.assert_close(log_probs.exp().sum(), torch.tensor(1.0))
