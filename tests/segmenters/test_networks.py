"""Networks, recipes and inference."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from lightning_calib.segmenters import (
    AdamWCosine,
    Inference,
    Members,
    NnUNetSGD,
    ResidualEncoderUNet,
    SmpNetwork,
    build_network,
)


@pytest.mark.parametrize(
    ("network", "dims"),
    [
        (SmpNetwork("unet", "resnet18", options={"decoder_channels": [16, 8, 8, 8, 8]}), 2),
        (SmpNetwork("FPN", "mobilenet_v2"), 2),
        (ResidualEncoderUNet([4, 8, 8], [1, 1, 1]), 2),
        (ResidualEncoderUNet([4, 8, 8], [1, 1, 1], deep_supervision=False), 2),
        (ResidualEncoderUNet([4, 8, 8], [1, 1, 1], strides=[1, [1, 2, 2], 2]), 3),
    ],
    ids=["smp-unet", "smp-fpn", "residual-2d", "residual-plain", "residual-3d-anisotropic"],
)
def test_networks_score_images_of_any_size(network, dims):
    torch.manual_seed(0)
    model = network.build(in_channels=2, num_classes=3, spatial_dims=dims)
    sizes = [2 * divisor + 1 for divisor in model.divisor]
    model.eval()
    images = torch.randn(1, 2, *sizes)
    logits, lower = model(images)
    assert logits.shape == (1, 3, *sizes)
    assert lower == []
    padded = torch.zeros(1, 2, *[3 * divisor for divisor in model.divisor])
    padded[(..., *map(slice, sizes))] = images
    assert torch.allclose(logits, model.logits(padded)[(..., *map(slice, sizes))], atol=1e-5)


def test_deep_supervision_gives_lower_resolutions_while_training():
    model = ResidualEncoderUNet([4, 8, 8, 8], [1, 1, 1, 1]).build(1, 2, 2)
    logits, lower = model(torch.randn(2, 1, 32, 16))
    assert [tuple(x.shape) for x in [logits, *lower]] == [(2, 2, 32, 16), (2, 2, 16, 8), (2, 2, 8, 4)]
    assert model.eval()(torch.randn(2, 1, 32, 16))[1] == []
    assert len(model.train()(torch.randn(2, 1, 32, 16))[1]) == 2
    with pytest.raises(ValueError, match=r"divisible by \(8, 8\), got \(30, 16\)"):
        model(torch.randn(2, 1, 30, 16))


@pytest.mark.parametrize("deep", [True, False])
def test_every_parameter_gets_a_gradient(deep):
    model = ResidualEncoderUNet([4, 8, 8], [1, 1, 1], deep_supervision=deep).build(1, 2, 3)
    logits, lower = model(torch.randn(1, 1, 8, 8, 8))
    sum(output.mean() for output in [logits, *lower]).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: SmpNetwork("unett").build(3, 2, 2), "unett"),
        (lambda: SmpNetwork(encoder_name="resnet19").build(3, 2, 2), "resnet19"),
        (lambda: SmpNetwork().build(3, 2, 3), "3D: choose ResidualEncoderUNet"),
        (lambda: ResidualEncoderUNet([4, 8], [1]), "got 2, 1 and 2"),
        (lambda: ResidualEncoderUNet([4, 8], [1, 1], strides=[1, [2, 2]]).build(1, 2, 3), "has 2 axes"),
        (lambda: AdamWCosine(warmup=1.0), "warmup"),
        (lambda: Inference(overlap=1.0), "overlap"),
        (lambda: Inference(window=[0, 8]), "window"),
    ],
)
def test_wrong_options_are_named(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()


def test_channels_last_changes_the_layout_and_nothing_else():
    networks = []
    for channels_last in (False, True):
        torch.manual_seed(0)
        network = SmpNetwork(encoder_name="mobilenet_v2", channels_last=channels_last)
        networks.append(network.build(in_channels=3, num_classes=2, spatial_dims=2))
    plain, last = (network.eval() for network in networks)
    image = torch.randn(2, 3, 64, 64)
    for parameter, other in zip(plain.parameters(), last.parameters(), strict=True):
        assert torch.equal(parameter, other)
    wide = [p for p in last.parameters() if p.ndim == 4 and min(p.shape[1:]) > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in wide)
    torch.testing.assert_close(last(image), plain(image), rtol=1e-3, atol=1e-4)
    last.load_state_dict(plain.state_dict())
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in wide)


def test_equal_seeds_give_equal_weights():
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(ResidualEncoderUNet([4, 8], [1, 1]).build(1, 2, 2).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


@pytest.mark.parametrize("recipe", [NnUNetSGD(lr=0.1), AdamWCosine(lr=0.1, warmup=0.1)])
def test_recipes_follow_their_formula(recipe):
    parameter = nn.Parameter(torch.ones(1))
    optimizer = recipe.optimizer([parameter])
    scheduler = recipe.scheduler(optimizer, total_steps=20)
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        parameter.grad = torch.zeros(1)
        optimizer.step()
        scheduler.step()
    progress = np.arange(20) / 20
    if isinstance(recipe, NnUNetSGD):
        expected = 0.1 * (1 - progress) ** 0.9
        group = optimizer.param_groups[0]
        assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.99, True, 3e-5)
        assert recipe.clip == 12
    else:
        falling = 0.05 * (1 + np.cos(np.pi * (progress - 0.1) / 0.9))
        expected = np.where(progress < 0.1, progress, falling)
    np.testing.assert_allclose(rates, expected, atol=1e-12)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)


def test_mirrored_views_are_averaged_as_logits():
    conv = nn.Conv3d(1, 2, 3, padding=1)
    images = torch.randn(1, 1, 4, 5, 6)
    with torch.no_grad():
        found = Inference(mirror_axes=(0, 2))(conv, images)
        views = [[], [2], [4], [2, 4]]
        expected = torch.stack([conv(images.flip(v)).flip(v) if v else conv(images) for v in views]).mean(0)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(40, 37), (17, 20, 9)])
def test_a_sliding_window_gives_what_one_piece_gives_where_context_does_not_matter(shape):
    conv = (nn.Conv2d if len(shape) == 2 else nn.Conv3d)(1, 3, 1)
    images = torch.randn(2, 1, *shape)
    with torch.no_grad():
        whole = Inference()(conv, images)
        scanned = Inference(window=[8] * len(shape), overlap=0.5, window_batch=4)(conv, images)
    assert scanned.shape == whole.shape
    assert torch.allclose(whole, scanned, atol=1e-4)


def test_windows_weigh_their_centre_most():
    # A predictor that marks positions within the window: 1 in the middle half, 0 at its rim.
    def predictor(windows):
        scores = torch.zeros(windows.shape[0], 1, *windows.shape[2:])
        scores[..., 4:12] = 1
        return scores

    found = Inference(window=[1, 16], overlap=0.5)(predictor, torch.zeros(1, 1, 1, 32))[0, 0, 0]
    # Voxels 8..11 lie in the middle half of the first window and at the rim of the second: with equal
    # weights the mean is 1/2, with Gaussian weights the nearer centre prevails.
    assert found[9] > 0.55
    assert found[4] == 1


def test_a_file_does_not_make_us_import_a_network_of_another_package(tmp_path, monkeypatch):
    text = "from tests.training import TinyNetwork\n\nclass Net(TinyNetwork):\n    pass\n"
    (tmp_path / "strangers_nets.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"class_path": "strangers_nets.Net", "init_args": {"width": 3}}
    with pytest.raises(ValueError, match="--trust"):
        build_network(config, in_channels=1, num_classes=2, spatial_dims=2)
    assert "strangers_nets" not in sys.modules
    network = build_network(config, in_channels=1, num_classes=2, spatial_dims=2, trust=True)
    assert network.logits(torch.zeros(1, 1, 4, 4)).shape == (1, 2, 4, 4)
    with pytest.raises(Exception, match="Popen"):  # imported, but no network
        build_network({"class_path": "subprocess.Popen"}, in_channels=1, num_classes=2, spatial_dims=2)


def test_members_of_another_architecture_are_refused_by_name(tmp_path):
    build = ResidualEncoderUNet([4, 8], [1, 1]).build
    torch.save({"state_dict": {f"network.{k}": v for k, v in build(1, 2, 2).state_dict().items()}}, tmp_path / "a.ckpt")
    members = Members.load(build(1, 2, 2), {"a": tmp_path / "a.ckpt"})
    assert len(members) == 1
    image = torch.randn(1, 1, 8, 8)
    assert torch.equal(members(image)[0], members.restored(image, lambda logits: logits))
    with pytest.raises(ValueError, match=r"member a: .*another network"):
        Members.load(build(1, 3, 2), {"a": tmp_path / "a.ckpt"})


def test_one_output_channel_is_two_classes():
    torch.manual_seed(0)
    options = {"decoder_channels": [16, 8, 8, 8, 8]}
    model = SmpNetwork("unet", "resnet18", options=options, classes=1).build(
        in_channels=2, num_classes=2, spatial_dims=2
    )
    images = torch.randn(2, 2, 40, 33)
    logits = model.eval().logits(images)
    assert logits.shape == (2, 2, 40, 33)
    assert not logits[:, 0].any()
    target = torch.randint(2, (2, 40, 33))
    theirs = nn.functional.binary_cross_entropy_with_logits(logits[:, 1], target.float())
    torch.testing.assert_close(nn.functional.cross_entropy(logits, target), theirs)
    with pytest.raises(ValueError, match="classes = 1 for data of 3 classes"):
        SmpNetwork(classes=1).build(in_channels=2, num_classes=3, spatial_dims=2)
