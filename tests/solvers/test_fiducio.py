"""Fits beside those of Fiducio, the library of the paper's authors: the same optima, or ours is lower."""

import pytest
import torch

from lightning_calib.calibrators import build
from lightning_calib.calibrators.fiducio import from_fiducio
from lightning_calib.solvers import fit
from tests.references.authors import GAPS, KINDS, fitted, penalty, quickly_fitted

CONDITIONAL = ("cdc", *GAPS)


def drawn(name, seed=0, voxels=1500, num_classes=3):
    """Logits (n, C), and labels that a calibrator of the kind draws from them, away from its bounds."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(voxels, num_classes, generator=generator)
    if name not in GAPS:
        logits *= 1.5
        logits[torch.arange(voxels), torch.randint(num_classes, (voxels,), generator=generator)] += 1.5
    truth = build(name, num_classes).requires_grad_(False)
    for label, parameter in truth.named_parameters():
        parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
        if label == "inner":
            parameter.copy_(0.6 + 0.3 * torch.rand(parameter.shape, generator=generator))
        elif label == "bias_gaps":
            parameter.fill_(0.5)
        elif label == "weights":
            parameter.copy_(torch.tensor([0.6, 0.2, 0.2]))
    return logits, torch.multinomial(truth(logits).exp(), 1, generator=generator).squeeze(1)


def ours(name, logits, target, **options):
    calibrator = build(name, logits.shape[1]).double()
    certificate = fit(calibrator, logits, target, **options)
    return calibrator.requires_grad_(False), certificate


def nll(log_probs, target):
    return float(-log_probs.gather(1, target[:, None]).double().mean())


def test_both_find_the_temperature():
    logits, target = drawn("ts")
    theirs, expected = fitted("ts", logits, target)
    calibrator, _ = ours("ts", logits, target, tolerance=1e-8)
    assert float(calibrator.temperature) == pytest.approx(theirs.temperature, rel=1e-5)
    torch.testing.assert_close(calibrator(logits), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("strength", [0.0, 1e-2])
@pytest.mark.parametrize("name", ["vs", "ms", "ms_c", "dc", "cdc"])
def test_both_find_the_same_optimum(name, strength):
    logits, target = drawn(name)
    lam = 0.0 if name == "vs" else strength  # another meaning, see below
    _, expected = fitted(name, logits, target, lambda_reg=lam, mu_reg=strength)
    calibrator, certificate = ours(name, logits, target, lam=lam, mu=strength, tolerance=1e-8)
    torch.testing.assert_close(calibrator(logits), expected, rtol=0, atol=1e-4)
    assert certificate.objective < certificate.identity_objective - 1e-3


def test_in_float32_theirs_ends_where_the_loss_no_longer_changes():
    """The NLL is as low to 1e-6; log-probabilities, in which it is flat, are further away."""
    logits, target = drawn("cdc")
    found = KINDS["cdc"](optimizer="lbfgs", max_iter=3000).fit(logits, target).transform(logits).log()
    calibrator, certificate = ours("cdc", logits, target, lam=0.0, mu=0.0, tolerance=1e-8)
    assert nll(found, target) == pytest.approx(certificate.nll, abs=1e-6)
    assert (calibrator(logits) - found).abs().max() > 1e-4


def test_the_sum_over_experts_is_not_theirs():
    logits, target = drawn("cdc")
    _, expected = fitted("cdc", logits, target, lambda_reg=1e-2, mu_reg=1e-2)
    calibrator, _ = ours("cdc", logits, target, lam=1e-2, mu=1e-2, reduction="sum")
    assert (calibrator(logits) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", GAPS)
def test_both_find_the_same_optimum_of_cms_where_theirs_starts_inside(name):
    logits, target = drawn(name)
    _, expected = fitted(name, logits, target, max_iter=400, init_floor=0.5)
    calibrator, _ = ours(name, logits, target, lam=0.0, mu=0.0, tolerance=1e-8)
    torch.testing.assert_close(calibrator(logits), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", GAPS)
def test_the_objective_of_cms_is_lower_than_theirs_from_their_own_start(name):
    """Softplus of a parameter that starts at 1e-6 has a gradient of 1e-6: it does not come away from 0."""
    logits, target = drawn(name)
    _, log_probs = fitted(name, logits, target, max_iter=100)
    _, certificate = ours(name, logits, target, lam=0.0, mu=0.0)
    assert certificate.objective < nll(log_probs, target) - 1e-2


@pytest.mark.parametrize("name", CONDITIONAL)
def test_the_penalty_of_the_same_parameters_is_the_same(name):
    logits, target = drawn(name, voxels=300)
    theirs = quickly_fitted(name, logits, target)
    found = float(from_fiducio(theirs).penalty(0.7, 0.2).detach())
    assert found == pytest.approx(penalty(theirs, 0.7, 0.2), rel=1e-5)
    assert found > 1e-3


@pytest.mark.parametrize("name", GAPS)
def test_a_penalised_cms_is_lower_because_the_part_that_softmax_cannot_see_is_fitted_too(name):
    """Theirs fixes the winner's row of ``W`` at the identity; ours, with the paper's count of parameters, fits it."""
    logits, target = drawn(name)
    lam = mu = 1e-1
    theirs, log_probs = fitted(name, logits, target, max_iter=400, init_floor=0.5, lambda_reg=lam, mu_reg=mu)
    calibrator, certificate = ours(name, logits, target, lam=lam, mu=mu)
    assert certificate.objective < nll(log_probs, target) + penalty(theirs, lam, mu) - 1e-3
    moved = calibrator.first_row - build(name, 3).first_row.detach()
    assert moved.abs().max() > 1e-2


def test_ets_is_lower_because_all_is_fitted_at_once():
    """Theirs fits the temperature, then the weights; the best temperature of the mixture is another one."""
    logits, target = drawn("ets")
    theirs, log_probs = fitted("ets", logits, target)
    calibrator, certificate = ours("ets", logits, target)
    assert certificate.nll <= nll(log_probs, target) + 1e-9
    assert abs(float(calibrator.temperature) - theirs.temperature) > 1e-2


def test_their_penalty_on_the_scales_of_vs_is_not_ours():
    """Theirs pulls scales to 1; ours has no off-diagonal weights to pull, and ``lam`` changes nothing."""
    logits, target = drawn("vs")
    _, free = fitted("vs", logits, target)
    _, pulled = fitted("vs", logits, target, lambda_reg=1.0)
    calibrator, _ = ours("vs", logits, target, lam=1.0, mu=0.0, tolerance=1e-8)
    torch.testing.assert_close(calibrator(logits), free, rtol=0, atol=1e-4)
    assert (calibrator(logits) - pulled).abs().max() > 1e-2


@pytest.mark.parametrize("by", ["label", "mask"])
def test_ignored_voxels_of_images_count_in_neither(by):
    """Theirs takes a label or a mask, ours a label: give it to the voxels that the mask leaves out."""
    voxels, labels = drawn("ms")
    logits, target = voxels.T.reshape(1, 3, 30, 50), labels.reshape(1, 30, 50).clone()
    logits[:, :, :5], target[:, :5] = 7.0, 255
    left_out = {"ignore_index": 255} if by == "label" else {"mask": target != 255}
    _, expected = fitted("ms", logits, target, lambda_reg=1e-2, **left_out)
    calibrator, certificate = ours("ms", logits, target, lam=1e-2, mu=0.0, ignore_index=255, tolerance=1e-8)
    assert certificate.num_voxels == 25 * 50
    torch.testing.assert_close(calibrator(logits)[:, :, 5:], expected[:, :, 5:], rtol=0, atol=1e-4)
