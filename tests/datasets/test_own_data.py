"""What users' own folders hold: told before training, each reason once, by file and remedy."""

import io

import nibabel
import numpy as np
import pytest
from PIL import Image

from lightning_calib.datasets.cases import DataError
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.readers import load_array, read_image, read_mask, read_nifti
from tests import layouts

NAMES = ["a", "b", "c"]


def problems_of(root, **options):
    with pytest.raises(DataError) as caught:
        Folder(root, NAMES, **options)
    return caught.value.problems


def test_a_reason_that_files_share_is_told_once(tmp_path):
    root = layouts.write_folder(tmp_path)
    for path in (root / "masks").iterdir():
        layouts.save_picture(path, np.random.default_rng(0).integers(0, 3, (64, 64, 3), np.uint8))
    first = root / "masks" / "p00_a.png"
    wanted = f"10 files, such as {first}: a colour image; masks hold one class number a pixel"
    assert problems_of(root) == [wanted]


def test_a_link_that_leads_nowhere_is_told(tmp_path):
    root = layouts.write_folder(tmp_path)
    path = root / "images" / "p01_a.png"
    path.unlink()
    path.symlink_to(tmp_path / "gone.png")
    (problem,) = problems_of(root)
    assert "No such file" in problem
    assert str(path) in problem


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a\\b"])
def test_names_that_no_output_could_have_are_told_before_training(tmp_path, name):
    root = layouts.write_folder(tmp_path)
    for part in ("images", "masks"):
        (root / part / "p01_a.png").rename(root / part / f"{name}.png")
    (problem,) = problems_of(root)
    assert problem.startswith(f"case {name!r} cannot name a file of outputs")
    assert problem.endswith("rename its files")


def test_one_value_beyond_the_classes_may_be_ignored(tmp_path):
    root = layouts.write_folder(tmp_path)
    for path in (root / "masks").iterdir():
        mask = np.array(Image.open(path))
        mask[:2] = 255
        layouts.save_picture(path, mask)
    (problem,) = problems_of(root)
    assert problem.endswith("set ignore_label: 255 where that counts nowhere, or name its class")
    assert Folder(root, NAMES, ignore_label=255).ignore_index == 255


@pytest.mark.parametrize("ending", [".jpg", ".png", ".tif", ".webp"])
def test_pictures_that_viewers_turn_are_refused(tmp_path, ending):
    """Where they are square, or stand on their heads, their size says nothing."""
    pixels, path = np.random.default_rng(0).integers(256, size=(16, 16, 3), dtype=np.uint8), tmp_path / f"a{ending}"
    for orientation in (0, 1, 3, 6):
        facts = Image.Exif()
        facts[274] = orientation
        Image.fromarray(pixels).save(path, **({"tiffinfo": facts} if ending == ".tif" else {"exif": facts}))
        if orientation < 2:
            assert read_image(path).shape == (16, 16, 3)
        else:
            with pytest.raises(ValueError, match=rf"a{ending}: viewers turn or mirror it \(orientation {orientation}"):
                read_image(path)


def zipped(path):
    content = io.BytesIO()
    np.savez(content, x=np.zeros(3))
    path.write_bytes(content.getvalue())


def vast(path):
    """A header that claims a petabyte."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**8, 10**6, 1)})


@pytest.mark.parametrize("broken", [zipped, vast, lambda path: path.write_text("1 2 3"), lambda path: path.touch()])
def test_arrays_that_are_none_are_told_by_file(tmp_path, broken):
    path = tmp_path / "a.npy"
    broken(path)
    for read in (load_array, read_image, read_mask):
        with pytest.raises(ValueError, match=r"a\.npy: damaged, or of a kind that is not read"):
            read(path)


def test_masks_of_other_numbers_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    for array in (np.zeros((2, 2), complex), np.full((2, 2), "1")):
        np.save(path, array)
        with pytest.raises(ValueError, match="masks hold class numbers"):
            read_mask(path)


@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_volumes_that_are_cut_off_are_told_by_file(tmp_path, share):
    path = tmp_path / "a.nii.gz"
    array = np.random.default_rng(0).normal(size=(9, 8, 7)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"a\.nii\.gz"):
        read_nifti(path)


@pytest.mark.parametrize("ending", [".png", ".jpg", ".tif", ".gif", ".bmp"])
def test_pictures_that_are_cut_off_are_told_by_file(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 40), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    for share in (0.02, 0.5):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises((ValueError, OSError), match=rf"a\{ending}"):
            read_image(path)
