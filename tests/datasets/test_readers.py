"""Files of every format come in as the arrays they were written from."""

import nibabel
import numpy as np
import pytest
from PIL import Image

from lightning_calib.datasets.readers import list_files, read_image, read_mask, read_nifti, read_rgb, stem, suffix
from tests import layouts


@pytest.fixture
def rgb():
    return np.random.default_rng(0).integers(0, 256, (12, 17, 3), dtype=np.uint8)


@pytest.mark.parametrize("ending", [".png", ".tif", ".tiff", ".webp"])
def test_lossless_pictures(tmp_path, rgb, ending):
    layouts.save_picture(tmp_path / f"a{ending}", rgb)
    np.testing.assert_array_equal(read_image(tmp_path / f"a{ending}"), rgb)


def test_jpeg(tmp_path):
    smooth = np.linspace(0, 250, 64 * 64 * 3).reshape(64, 64, 3).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.jpeg", quality=95, subsampling=0)
    assert np.abs(read_rgb(tmp_path / "a.jpeg").astype(int) - smooth).mean() < 3


def test_grey_and_transparent_pictures_become_rgb(tmp_path, rgb):
    layouts.save_picture(tmp_path / "grey.png", rgb[..., 0])
    np.testing.assert_array_equal(read_rgb(tmp_path / "grey.png"), np.repeat(rgb[..., :1], 3, axis=2))
    alpha = np.concatenate([rgb, np.full((12, 17, 1), 9, np.uint8)], axis=2)
    layouts.save_picture(tmp_path / "alpha.png", alpha)
    np.testing.assert_array_equal(read_rgb(tmp_path / "alpha.png"), rgb)


def test_sixteen_bits_are_refused_with_the_remedy(tmp_path):
    Image.fromarray(np.full((4, 4), 999, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png: .* more than 8 bits a channel; save it as NPY"):
        read_image(tmp_path / "deep.png")


def test_palette_masks_give_indices(tmp_path):
    classes = np.arange(12, dtype=np.uint8).reshape(3, 4)
    image = Image.new("P", (4, 3))
    image.putpalette([value for n in range(256) for value in (255 - n, n, 7)])
    image.putdata(classes.ravel().tolist())
    image.save(tmp_path / "mask.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "mask.png"), classes)


def test_masks_of_other_kinds(tmp_path):
    classes = np.array([[0, 1], [2, 3]])
    np.save(tmp_path / "float.npy", classes.astype(np.float32))
    assert read_mask(tmp_path / "float.npy").dtype == np.int64
    np.save(tmp_path / "bool.npy", classes > 1)
    np.testing.assert_array_equal(read_mask(tmp_path / "bool.npy"), [[0, 0], [1, 1]])
    layouts.save_picture(tmp_path / "grey.png", np.repeat(classes[..., None], 3, 2).astype(np.uint8))
    np.testing.assert_array_equal(read_mask(tmp_path / "grey.png"), classes)
    Image.fromarray(classes > 1).save(tmp_path / "bit.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "bit.png"), [[0, 0], [1, 1]])


def test_nifti_comes_with_slices_first(tmp_path):
    array = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)  # x, y, z
    layouts.save_nifti(tmp_path / "a.nii.gz", array, (0.5, 1.0, 3.0))
    volume = read_nifti(tmp_path / "a.nii.gz")
    assert volume.array.shape == (4, 3, 2)
    assert volume.array[3, 1, 0] == array[0, 1, 3]
    assert volume.spacing == (3.0, 1.0, 0.5)
    back = nibabel.Nifti1Image(volume.array.T, np.array(volume.geometry["affine"]))
    np.testing.assert_array_equal(back.get_fdata(), array)
    assert back.header.get_zooms() == (0.5, 1.0, 3.0)


def test_shapes_that_are_no_image(tmp_path):
    np.save(tmp_path / "line.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"line\.npy: shape \(3,\); a 2D image is"):
        read_image(tmp_path / "line.npy")
    layouts.save_nifti(tmp_path / "flat.nii", np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"flat\.nii: shape \(3, 4\); a volume has 3 axes"):
        read_nifti(tmp_path / "flat.nii")


def test_names(tmp_path):
    for name in ("b.PNG", "a.nii.gz", ".DS_Store", "._a.png", "notes.txt"):
        (tmp_path / name).touch()
    assert [p.name for p in list_files(tmp_path)] == ["a.nii.gz", "b.PNG"]
    assert [stem(p) for p in list_files(tmp_path)] == ["a", "b"]
    assert suffix(tmp_path / "b.PNG") == ".png"
    assert list_files(tmp_path / "absent") == []
