"""Local temperature scaling: the network, its start, volumes and borders."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.calibrators import LocalTemperatureScaling, build
from lightning_calib.calibrators.local import NUM_LEAVES
from lightning_calib.functional.convolution import convolve_by_phases
from tests.calibrators.helpers import randomized
from tests.references.calibrators import local_temperature

VARIANTS = ["lts", "lts_ti"]


@pytest.mark.parametrize("size", [(9, 11), (5, 3), (2, 7), (1, 4), (1, 1)])
def test_temperature_against_the_oracle(size):
    calibrator = randomized("lts", 3, 1, 0.2, dtype=torch.float64)
    logits = torch.randn(1, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernels, biases = (p.detach().numpy() for p in calibrator.convolutions.parameters())
    expected = local_temperature(logits[0].numpy(), kernels, biases)
    torch.testing.assert_close(calibrator.temperature_map(logits)[0, 0], torch.from_numpy(expected))


@given(height=st.integers(9, 16), width=st.integers(9, 16), batch=st.integers(1, 3), seed=st.integers(0, 99))
def test_phases_give_the_dilated_convolution_and_its_gradients(height, width, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    field, weight, bias = (
        torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for shape in ((batch, 3, height, width), (7, 3, 5, 5), (7,))
    )
    plain = torch.nn.functional.conv2d(field, weight, bias, dilation=2)
    ours = convolve_by_phases(field, weight, bias)
    torch.testing.assert_close(ours, plain)
    direction = torch.randn(plain.shape, dtype=torch.float64, generator=generator)
    for mine, theirs in zip(
        *(torch.autograd.grad(y, (field, weight, bias), direction) for y in (ours, plain)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", VARIANTS)
def test_temperatures_are_the_same_with_and_without_gradients(name):
    calibrator = randomized(name, 4, 2, 0.2, dtype=torch.float64)
    logits = torch.randn(2, 4, 7, 8, dtype=torch.float64)
    learning = calibrator.temperature_map(logits)
    assert learning.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(calibrator.temperature_map(logits), learning)


@pytest.mark.parametrize("name", VARIANTS)
def test_log_probs_are_scaled_by_the_temperature(name):
    calibrator = randomized(name, 4, 2, 0.2, dtype=torch.float64)
    logits = torch.randn(2, 4, 7, 8, dtype=torch.float64)
    expected = (logits / calibrator.temperature_map(logits)).log_softmax(1)
    torch.testing.assert_close(calibrator(logits), expected)


def train(calibrator, steps, logits, target):
    optimizer = torch.optim.Adam(calibrator.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(calibrator(logits), target).backward()
        optimizer.step()


@pytest.mark.parametrize("spatial_dims", [2, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_all_seven_convolutions_learn(name, spatial_dims):
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, 6, 9, 10)[: 2 + spatial_dims]
    logits = 3 * torch.randn(shape, generator=generator)
    target = torch.randint(0, 3, (shape[0], *shape[2:]), generator=generator)
    calibrator = build(name, 3, spatial_dims)
    assert isinstance(calibrator, LocalTemperatureScaling)
    train(calibrator, 2, logits, target)
    gradients = calibrator.convolutions.weight.grad.flatten(1).norm(dim=1)
    assert (gradients > 0).all()
    train(calibrator, 30, logits, target)
    leaves = calibrator.convolutions.weight.detach()[:NUM_LEAVES].flatten(1)
    assert torch.cdist(leaves, leaves)[~torch.eye(NUM_LEAVES, dtype=torch.bool)].min() > 1e-3


def test_equal_gates_would_never_train():
    """Why the gates start apart: from zero they get no gradient, and the leaves stay the same."""
    calibrator = build("lts", 3)
    torch.nn.init.zeros_(calibrator.convolutions.weight)
    logits, target = torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))
    train(calibrator, 10, logits, target)
    weight = calibrator.convolutions.weight.detach()
    assert torch.equal(weight[0], weight[3])
    assert (weight[NUM_LEAVES:] == 0).all()


@pytest.mark.parametrize("through_plane", [0, 1, 2])
def test_volumes_are_calibrated_slice_by_slice(through_plane):
    volume = torch.randn(2, 3, 5, 6, 7)
    in_3d = randomized("lts_ti", 3, 4, 0.2, spatial_dims=3, through_plane=through_plane)
    in_2d = build("lts_ti", 3)
    in_2d.load_state_dict(in_3d.state_dict())
    slices = [in_2d(image) for image in volume.unbind(2 + through_plane)]
    torch.testing.assert_close(in_3d(volume), torch.stack(slices, 2 + through_plane))


@pytest.mark.parametrize("name", VARIANTS)
def test_huge_logits(name):
    logits = torch.tensor([1e4, -1e4, 0.0]).view(1, 3, 1, 1).expand(1, 3, 6, 6)
    log_probs = randomized(name, 3, 0)(logits)
    assert torch.isfinite(log_probs).all()


def test_the_flag_and_the_registry_agree():
    canonical = LocalTemperatureScaling(4, canonical=True)
    assert canonical.translation_invariant
    registered = build("lts_ti", 4)
    registered.load_state_dict(canonical.state_dict())
    logits = torch.randn(1, 4, 6, 6)
    assert torch.equal(canonical(logits), registered(logits))


def test_axes_are_checked():
    with pytest.raises(ValueError, match="needs logits with 5 axes, got the shape"):
        build("lts", 3, spatial_dims=3)(torch.zeros(1, 3, 8, 8))
