"""Files of every format come in as the arrays they were written from."""

import cv2
import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from lightning_calib.datasets.readers import list_files, read_image, read_mask, read_nifti, stem, suffix
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
    assert np.abs(read_image(tmp_path / "a.jpeg").astype(int) - smooth).mean() < 3


@pytest.mark.parametrize("ending", [".png", ".tif", ".bmp", ".gif"])
def test_grey_pictures_get_three_equal_channels(tmp_path, rgb, ending):
    layouts.save_picture(tmp_path / f"grey{ending}", rgb[..., 0])
    np.testing.assert_array_equal(read_image(tmp_path / f"grey{ending}"), np.repeat(rgb[..., :1], 3, axis=2))


def test_transparency_is_refused_dropped_or_a_band(tmp_path, rgb):
    opaque = np.concatenate([rgb, np.full((12, 17, 1), 255, np.uint8)], axis=2)
    layouts.save_picture(tmp_path / "opaque.png", opaque)
    np.testing.assert_array_equal(read_image(tmp_path / "opaque.png"), rgb)
    for name, clear in (("a.png", opaque), ("a.webp", opaque), ("a.tif", opaque)):
        clear = clear.copy()
        clear[:6, :, 3] = 9
        layouts.save_picture(tmp_path / name, clear)
        with pytest.raises(ValueError, match=f"{name}: transparency that differs .* set alpha: drop"):
            read_image(tmp_path / name)
        np.testing.assert_array_equal(read_image(tmp_path / name, alpha="drop")[6:], rgb[6:])
        np.testing.assert_array_equal(read_image(tmp_path / name, alpha="band")[..., 3], clear[..., 3])


def test_sixteen_bits_are_kept(tmp_path):
    deep = np.random.default_rng(1).integers(0, 2**16, (6, 7, 4), dtype=np.uint16)
    cv2.imwrite(str(tmp_path / "rgb.png"), deep[..., 2::-1])  # in cv2's order: blue, green, red
    tifffile.imwrite(tmp_path / "rgb.tif", deep[..., :3], photometric="rgb")
    for name in ("rgb.png", "rgb.tif"):
        np.testing.assert_array_equal(read_image(tmp_path / name), deep[..., :3])
    cv2.imwrite(str(tmp_path / "alpha.png"), deep[..., [2, 1, 0, 3]])
    np.testing.assert_array_equal(read_image(tmp_path / "alpha.png", alpha="band"), deep)
    Image.fromarray(deep[..., 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(read_image(tmp_path / "grey.png"), np.repeat(deep[..., :1], 3, axis=2))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["contig", "separate"])
@pytest.mark.parametrize("packing", [None, "lzw", "zlib"])
def test_all_bands_of_a_tiff_are_kept(tmp_path, kind, order, packing):
    array = np.random.default_rng(2).uniform(0, 200, (6, 7, 5)).astype(kind)
    written = array if order == "contig" else np.ascontiguousarray(np.moveaxis(array, 2, 0))
    options = {"photometric": "minisblack", "planarconfig": order, "compression": packing, "byteorder": ">"}
    tifffile.imwrite(tmp_path / "a.tif", written, **options)
    found = read_image(tmp_path / "a.tif")
    assert found.dtype == (kind if kind in (np.uint8, np.uint16) else np.float32)
    np.testing.assert_array_equal(found, array.astype(np.float32))


def test_other_tiffs(tmp_path):
    deep = np.arange(42, dtype=np.uint16).reshape(6, 7)
    tifffile.imwrite(tmp_path / "white.tif", deep, photometric="miniswhite")
    np.testing.assert_array_equal(read_image(tmp_path / "white.tif")[..., 0], 65535 - deep)
    tifffile.imwrite(tmp_path / "channels.tif", np.stack([deep, deep + 1]), imagej=True, metadata={"axes": "CYX"})
    np.testing.assert_array_equal(read_image(tmp_path / "channels.tif")[..., 1], deep + 1)
    tifffile.imwrite(tmp_path / "pages.tif", np.stack([deep, deep]), photometric="minisblack")
    with pytest.raises(ValueError, match=r"pages\.tif: 2 pages in one file"):
        read_image(tmp_path / "pages.tif")
    Image.fromarray(np.full((4, 5, 4), 30, np.uint8), "CMYK").save(tmp_path / "print.tif")
    assert read_image(tmp_path / "print.tif").shape == (4, 5, 3)
    (tmp_path / "broken.tif").write_bytes(b"II*\0" + bytes(40))
    with pytest.raises(ValueError, match=r"broken\.tif: "):
        read_image(tmp_path / "broken.tif")


def test_films_are_refused(tmp_path, rgb):
    frames = [Image.fromarray(rgb), Image.fromarray(255 - rgb)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=r"film\.gif: 2 pictures in one file"):
        read_image(tmp_path / "film.gif")


def test_values_that_are_no_numbers_are_refused(tmp_path):
    for value in (np.nan, np.inf):
        array = np.zeros((4, 5), np.float32)
        array[2, 3] = value
        np.save(tmp_path / "a.npy", array)
        tifffile.imwrite(tmp_path / "a.tif", array)
        for name in ("a.npy", "a.tif"):
            with pytest.raises(ValueError, match=f"{name}: not every pixel is a finite number"):
                read_image(tmp_path / name)


def test_channels_first(tmp_path):
    array = np.random.default_rng(3).uniform(size=(2, 4, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(read_image(tmp_path / "a.npy", channels_first=True)[..., 1], array[1])
    assert read_image(tmp_path / "a.npy").shape == (2, 4, 5)


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
    for ending in (".png", ".tif", ".bmp"):
        Image.fromarray(classes > 1).save(tmp_path / f"bit{ending}")
        np.testing.assert_array_equal(read_mask(tmp_path / f"bit{ending}"), [[0, 0], [1, 1]])
    for ending in (".gif", ".bmp", ".tif"):
        layouts.save_picture(tmp_path / f"deep{ending}", (classes * 85).astype(np.uint8))
        np.testing.assert_array_equal(read_mask(tmp_path / f"deep{ending}"), classes * 85)
    tifffile.imwrite(tmp_path / "many.tif", classes.astype(np.uint16) * 999)
    np.testing.assert_array_equal(read_mask(tmp_path / "many.tif"), classes * 999)


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
    with pytest.raises(ValueError, match=r"line\.npy: float64 of shape \(3,\); a 2D image is"):
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
