"""Corruptions: the paper's parameters, known effects, the same bytes everywhere."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from lightning_calib.datasets.corruptions import KINDS, PARAMETERS, SEVERITIES, Corruption, corrupt, psnr
from lightning_calib.datasets.drawing import Style, draw
from lightning_calib.datasets.shapes import Shapes


@pytest.fixture(scope="module")
def photo():
    image, _ = draw(np.random.default_rng(0), (96, 120), Style())
    return np.rint(255 * image).astype(np.uint8)


def test_the_bank_has_the_parameters_of_the_paper():
    assert {kind: tuple(tuple(PARAMETERS[kind][s].values()) for s in SEVERITIES) for kind in KINDS} == {
        "noise": ((0.03,), (0.10,)),
        "blur": ((5, 1.0), (13, 3.0)),
        "brightness": ((1.2,), (1.8,)),
        "jpeg": ((60,), (10,)),
        "fog": ((0.1,), (0.5,)),
    }


@pytest.mark.parametrize(("severity", "sigma"), [("mild", 0.03), ("strong", 0.10)])
def test_noise_has_its_sigma_and_its_psnr(severity, sigma):
    grey = np.full((256, 256, 3), 128, dtype=np.uint8)
    noisy = corrupt(grey, "noise", severity, key=7)
    deviation = (noisy.astype(float) - 128) / 255
    assert deviation.std() == pytest.approx(sigma, rel=0.01)
    assert abs(deviation.mean()) < 4 * sigma / np.sqrt(deviation.size)
    assert psnr(grey, noisy) == pytest.approx(-20 * np.log10(sigma), abs=0.1)
    channels = deviation.reshape(-1, 3)
    assert np.abs(np.corrcoef(channels.T) - np.eye(3)).max() < 0.02  # independent channels


@pytest.mark.parametrize(("severity", "radius", "sigma"), [("mild", 2, 1.0), ("strong", 6, 3.0)])
def test_blur_is_scipys(photo, severity, radius, sigma):
    expected = ndimage.gaussian_filter(
        photo.astype(float), (sigma, sigma, 0), mode="mirror", radius=(radius, radius, 0)
    )
    assert np.array_equal(corrupt(photo, "blur", severity), np.rint(expected).astype(np.uint8))


@pytest.mark.parametrize(("severity", "factor", "alpha"), [("mild", 12, 1), ("strong", 18, 5)])
def test_brightness_and_fog_in_whole_numbers(photo, severity, factor, alpha):
    wide = photo.astype(np.int64)
    bright = corrupt(photo, "brightness", severity).astype(np.int64)
    assert (np.abs(10 * bright - np.minimum(factor * wide, 2550)) <= 5).all()
    hazy = corrupt(photo, "fog", severity).astype(np.int64)
    assert (np.abs(10 * hazy - ((10 - alpha) * wide + alpha * 255)) <= 5).all()


def test_jpeg_is_pillows(photo):
    for severity, quality in (("mild", 60), ("strong", 10)):
        file = io.BytesIO()
        Image.fromarray(photo).save(file, "JPEG", quality=quality)
        assert np.array_equal(corrupt(photo, "jpeg", severity), np.asarray(Image.open(file)))


@pytest.mark.parametrize("kind", KINDS)
def test_strong_is_further_from_the_image_than_mild(photo, kind):
    mild, strong = (psnr(photo, corrupt(photo, kind, severity)) for severity in SEVERITIES)
    assert 8 < strong < mild - 1 < 60


def test_the_bytes_are_those_of_every_machine():
    """JPEG aside, which libjpeg computes."""
    digests = {
        (kind, severity): hashlib.sha256(corrupt(_ramp(), kind, severity, key=2**100 + 3).tobytes()).hexdigest()[:8]
        for kind in KINDS
        if kind != "jpeg"
        for severity in SEVERITIES
    }
    assert digests == KNOWN


def _ramp():
    return np.arange(17 * 23 * 3, dtype=np.uint64).reshape(17, 23, 3).astype(np.uint8)


KNOWN = {
    ("noise", "mild"): "c461fe1d",
    ("noise", "strong"): "a34b2cb1",
    ("blur", "mild"): "0bc73081",
    ("blur", "strong"): "f20d450c",
    ("brightness", "mild"): "6402c2b8",
    ("brightness", "strong"): "92746e88",
    ("fog", "mild"): "6a18e856",
    ("fog", "strong"): "2f026b1a",
}


def test_kinds_follow_from_name_and_seed_and_are_all_met():
    names = [f"frame_{n:05d}" for n in range(1000)]
    kinds = [Corruption("mild").kind(name) for name in names]
    assert kinds == [Corruption("strong").kind(name) for name in names]
    assert kinds != [Corruption("mild", seed=1).kind(name) for name in names]
    counts = [kinds.count(kind) for kind in KINDS]
    assert min(counts) > 150
    assert kinds[:6] == ["fog", "brightness", "blur", "brightness", "blur", "fog"]


def test_noise_differs_between_images_and_seeds():
    grey = np.full((8, 8, 3), 128, dtype=np.uint8)
    noisy = [n for n in map(str, range(60)) if Corruption("mild").kind(n) == "noise"][:2]
    first, second = (Corruption("mild")(grey, name) for name in noisy)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, Corruption("mild")(grey, noisy[0]))


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (7, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_tiny_images_keep_their_shape(kind, size):
    image = np.full((*size, 3), 200, dtype=np.uint8)
    assert corrupt(image, kind, "strong").shape == image.shape


@pytest.mark.parametrize("image", [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8)])
def test_other_images_are_refused(image):
    with pytest.raises(ValueError, match=r"8-bit RGB images \(H, W, 3\), got"):
        corrupt(image, "fog", "mild")


def test_severities_are_checked():
    with pytest.raises(ValueError, match="'severe'; choose one of mild, strong"):
        Corruption("severe")


def test_a_data_module_keeps_its_labels():
    options = {"num_train": 1, "num_val": 1, "num_pool": 6, "size": (32, 32)}
    clean, foul = Shapes(**options), Shapes(**options, raw_transform=Corruption("strong"))
    for before, after in zip(clean.predict_dataloader(), foul.predict_dataloader(), strict=True):
        assert before["case_id"] == after["case_id"]
        assert before["target"].equal(after["target"])
        assert not before["image"].equal(after["image"])
