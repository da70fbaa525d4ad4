"""The repair touches broken voxels only, and the gradient never."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.functional.preservation import preserve, restore_argmax, restore_order

seeds = st.integers(0, 2**31 - 1)


def levels(seed, salt):
    generator = torch.Generator().manual_seed(seed + salt)
    return torch.randint(-3, 3, (2, 5, 40), generator=generator).float()


@given(seed=seeds)
def test_argmax_is_restored_and_nothing_else_moves(seed):
    log_probs, logits = levels(seed, 0), levels(seed, 1)
    fixed = restore_argmax(log_probs, logits)
    assert torch.equal(fixed.argmax(1), logits.argmax(1))
    broken = log_probs.argmax(1) != logits.argmax(1)
    winner = torch.nn.functional.one_hot(logits.argmax(1), 5).movedim(-1, 1).bool()
    untouched = ~(winner & broken.unsqueeze(1))
    assert torch.equal(fixed[untouched], log_probs[untouched])
    top = log_probs.amax(1)[broken]
    assert torch.equal(fixed.amax(1)[broken], torch.nextafter(top, torch.full_like(top, torch.inf)))


@given(seed=seeds)
def test_order_is_restored(seed):
    log_probs, logits = levels(seed, 0), levels(seed, 1)
    fixed = restore_order(log_probs, logits)
    before = logits.unsqueeze(1) > logits.unsqueeze(2)
    assert not (before & (fixed.unsqueeze(1) < fixed.unsqueeze(2))).any()
    assert torch.equal(fixed.argmax(1), logits.argmax(1))


@given(seed=seeds)
def test_restoring_the_order_keeps_the_values(seed):
    log_probs, logits = torch.randn(2, 2, 5, 40, generator=torch.Generator().manual_seed(seed))
    fixed = restore_order(log_probs.log_softmax(1), logits)
    torch.testing.assert_close(fixed.sort(dim=1).values, log_probs.log_softmax(1).sort(dim=1).values)


@given(seed=seeds)
def test_what_is_in_order_stays_bit_for_bit(seed):
    logits = levels(seed, 0)
    assert restore_order(logits / 2, logits).equal(logits / 2)


def test_an_inversion_of_one_ulp_is_mended():
    low = torch.tensor(-2.0)
    high = torch.nextafter(low, torch.tensor(0.0))
    fixed = restore_order(torch.stack([torch.tensor(-0.5), low, high]).view(1, 3), torch.tensor([[3.0, 2.0, 1.0]]))
    assert fixed.tolist() == [[-0.5, high.item(), -2.0]]


def test_gradient_ignores_the_repair():
    log_probs = torch.tensor([[-1.0, -0.5, -2.0]], requires_grad=True)
    weights = torch.tensor([[1.0, 2.0, 3.0]])
    fixed = preserve(log_probs, torch.tensor([[3.0, 1.0, 2.0]]), "order")
    assert not torch.equal(fixed, log_probs)
    (fixed * weights).sum().backward()
    assert torch.equal(log_probs.grad, weights)
