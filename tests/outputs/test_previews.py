"""Pictures of the images behind a store: what they show, where they come from, and stores without them."""

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_calib.api import from_arrays
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.previews import MAX_SIDE, eight_bit, preview_path, read_preview
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter


def write(folder, target, image, **options):
    classes = 3
    writer = OutputWriter(folder, "toy", list("abc"), target.ndim, [Member("0")], ignore_index=255, **options)
    logits = torch.zeros(1, classes, *target.shape)
    writer.write("one", logits, target, image=image)
    writer.finish()
    return OutputStore(folder)


def test_an_image_keeps_its_colours_and_its_place(tmp_path):
    image = torch.linspace(-2, 5, 3 * 12 * 10).view(3, 12, 10)
    found = write(tmp_path, torch.zeros(12, 10).long(), image)["one"].preview
    assert (found.pixels.shape, found.plane) == ((12, 10, 3), None)
    assert (np.diff(found.pixels.astype(int), axis=1) >= 0).all()
    assert (found.pixels.min(), found.pixels.max()) == (0, 255)


def test_a_volume_is_shown_by_the_plane_with_most_foreground(tmp_path):
    target = torch.zeros(4, 8, 9).long()
    target[1, :2], target[3, :5], target[0] = 1, 2, 255
    image = torch.rand(1, 4, 8, 9)
    found = write(tmp_path, target, image, background=0)["one"].preview
    assert found.plane == 3
    expected = eight_bit(image[:, 3])
    np.testing.assert_array_equal(found.pixels, np.repeat(expected[..., None], 3, axis=2))


def test_large_images_are_thinned_out(tmp_path):
    found = write(tmp_path, torch.zeros(3, 2 * MAX_SIDE + 1).long(), torch.rand(1, 3, 2 * MAX_SIDE + 1))["one"].preview
    assert max(found.pixels.shape) <= MAX_SIDE


@pytest.mark.parametrize("values", [torch.full((2, 4, 4), 7.0), torch.full((1, 4, 4), float("nan"))])
def test_flat_and_broken_images_are_black(values):
    assert (eight_bit(values) == 0).all()


def test_stores_without_pictures_work_and_what_is_no_picture_is_none(tmp_path):
    target = torch.zeros(6, 6).long()
    store = write(tmp_path, target, torch.rand(1, 6, 6))
    store.verify()
    path = preview_path(tmp_path, "one")
    assert path.is_file()
    for content in (b"", b"no picture", path.read_bytes()[:60]):
        path.write_bytes(content)
        assert store["one"].preview is None
    Image.new("L", (MAX_SIDE + 1, 2)).save(path)
    assert read_preview(tmp_path, "one") is None
    path.unlink()
    assert OutputStore(tmp_path)["one"].preview is None


def test_a_case_that_is_written_again_without_an_image_loses_its_picture(tmp_path):
    target = torch.zeros(6, 6).long()
    writer = OutputWriter(tmp_path, "toy", ["a", "b"], 2, [Member("0")])
    for image in (torch.rand(3, 6, 6), None, torch.rand(3, 5, 6)):
        writer.write("one", torch.zeros(1, 2, 6, 6), target, image=image)
        assert preview_path(tmp_path, "one").is_file() == (image is not None and image.shape[1:] == target.shape)


def test_arrays_come_with_their_images(tmp_path):
    logits, target = {"a": torch.randn(2, 3, 8, 8)}, {"a": torch.zeros(8, 8).long()}
    store = from_arrays(
        tmp_path / "toy" / "outputs", logits, target, images={"a": np.random.default_rng(0).random((1, 8, 8))}
    )
    assert store["a"].preview.pixels.shape == (8, 8, 3)
