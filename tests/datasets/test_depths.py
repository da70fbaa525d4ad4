"""Folders of every depth and number of bands: training and application see the same, all of it."""

import cv2
import numpy as np
import pytest
import tifffile

from lightning_calib.datasets.cases import DataError
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.preprocessing import Preprocessing
from tests import layouts

NAMES = ["a", "b"]


def deep_png(path, array):
    cv2.imwrite(str(path.with_suffix(".png")), array[..., ::-1])


def planar_tiff(path, array):
    tifffile.imwrite(path.with_suffix(".tif"), np.moveaxis(array, 2, 0), planarconfig="separate", photometric=1)


def channels_first(path, array):
    np.save(path.with_suffix(".npy"), np.moveaxis(array, 2, 0))


KINDS = {
    "deep colours": (deep_png, np.uint16, 3, {}),
    "five bands": (planar_tiff, np.uint8, 5, {}),
    "fractions": (planar_tiff, np.float32, 4, {}),
    "arrays": (channels_first, np.float64, 2, {"channels_first": True}),
}


def write(root, save, kind, bands, cases=8, size=(24, 20)):
    """Images whose last band alone tells the classes apart, in steps that eight bits do not have."""
    rng = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for number in range(cases):
        mask = layouts.blocks(rng, size, [0, 1])
        image = rng.integers(90, 110, (*size, bands)).astype(kind)
        image[..., -1] = 100 + 40 * mask
        save(root / "images" / f"c{number}", image)
        layouts.save_picture(root / "masks" / f"c{number}.gif", mask * 255)
    return root


@pytest.mark.parametrize("name", KINDS)
def test_training_and_application_see_every_band(tmp_path, name):
    save, kind, bands, options = KINDS[name]
    root = write(tmp_path / "data", save, kind, bands)
    data = Folder(root, NAMES, mask_values=[0, 255], augmentation="strong", crop_size=(16, 16), **options)
    assert (data.in_channels, data.normalization) == (bands, "image")
    assert next(iter(data.train_dataloader()))["image"].shape[1:] == (bands, 16, 16)
    load = Preprocessing.from_dict(data.preprocessing.to_dict()).loader()
    for sample, case in zip(data.dataset(data.splits.pool, "predict"), data.splits.pool, strict=True):
        assert sample["image"].allclose(load(case.images).image)
        last, target = sample["image"][-1], sample["target"].bool()
        assert last[target].min() > last[~target].max()


def test_grey_and_colour_in_one_folder_are_said(tmp_path):
    root = layouts.write_folder(tmp_path, cases=8)
    assert "grey and" not in Folder(root, ["a", "b", "c"]).summary()
    for name in ("p00_a", "p01_b"):
        layouts.save_picture(root / "images" / f"{name}.png", np.full((64, 64), 7, np.uint8))
    module = Folder(root, ["a", "b", "c"])
    assert "2 grey and 6 colour images" in module.summary()
    assert {sample["image"].shape[0] for sample in module.dataset(module.splits.all, "predict")} == {3}


def test_other_depths_than_the_first_are_refused_with_the_remedy(tmp_path):
    root = layouts.write_folder(tmp_path, cases=8)
    deep = np.full((64, 64, 3), 999, np.uint16)
    deep_png(root / "images" / "p01_a", deep)
    with pytest.raises(DataError, match="uint16, not 8 bits as the others; set normalize: image"):
        Folder(root, ["a", "b", "c"])
    assert Folder(root, ["a", "b", "c"], normalize="image").in_channels == 3


def test_channels_first_is_suggested(tmp_path):
    root = write(tmp_path / "data", channels_first, np.float32, 2)
    with pytest.raises(DataError, match="set channels_first: true"):
        Folder(root, NAMES, mask_values=[0, 255])


def test_arrays_that_are_not_finite_are_refused(tmp_path):
    root = layouts.write_folder(tmp_path, suffix=".npy")
    array = np.load(root / "images" / "p00_a.npy")
    array[3, 4, 0] = np.nan
    np.save(root / "images" / "p00_a.npy", array)
    with pytest.raises(DataError, match=r"p00_a\.npy: not every pixel is a finite number"):
        Folder(root, ["a", "b", "c"])
