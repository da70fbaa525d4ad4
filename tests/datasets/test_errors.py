"""What is wrong with a data set is found before training, and all of it is named in one error."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from lightning_calib.datasets.brats import BraTS
from lightning_calib.datasets.camvid import CamVid
from lightning_calib.datasets.cases import DataError
from lightning_calib.datasets.cityscapes import Cityscapes
from lightning_calib.datasets.decathlon import Decathlon
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.massroads import MassachusettsRoads
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.datasets.shapes3d import Shapes3D
from lightning_calib.datasets.volume_folder import VolumeFolder
from tests import layouts

NAMES = ["a", "b", "c"]


def problems_of(call):
    with pytest.raises(DataError) as caught:
        call()
    assert str(caught.value).startswith(f"{len(caught.value.problems)} problem")
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def assert_each(problems, *texts):
    """Each text is in exactly one problem, and there is no other problem."""
    assert len(problems) == len(texts), problems
    for text in texts:
        assert sum(text in problem for problem in problems) == 1, (text, problems)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-60])


def test_folder_lists_everything_at_once(tmp_path):
    root = layouts.write_folder(tmp_path, cases=12)
    (root / "masks" / "p00_a.png").unlink()
    (root / "images" / "p00_b.png").unlink()
    truncate(root / "images" / "p01_a.png")
    (root / "images" / "p01_b.png").write_bytes(b"no image")
    mask = np.zeros((64, 64), np.uint8)
    mask[0, :2] = (3, 9)
    layouts.save_picture(root / "masks" / "p02_a.png", mask)
    layouts.save_picture(root / "masks" / "p02_b.png", mask[:32] * 0)
    layouts.save_picture(root / "masks" / "p03_a.png", np.random.default_rng(0).integers(0, 3, (64, 64, 3), np.uint8))
    shutil.copy(root / "images" / "p03_b.png", root / "images" / "p03_b.tiff")
    problems = problems_of(lambda: Folder(root, NAMES))
    assert_each(
        problems,
        "images/p00_a.png: no mask of the same name",
        "masks/p00_b.png: no image of the same name",
        "images/p01_a.png",
        "images/p01_b.png",
        "labels [3, 9] are out of range; allowed are 0 to 2",
        "the image is (64, 64), the mask (32, 64)",
        "masks/p03_a.png: a colour image; masks hold one class number a pixel",
        "images/p03_b.tiff: has the same name as",
    )
    assert any("p02_a" in p and "out of range" in p for p in problems)


def test_empty_and_absent_folders(tmp_path):
    (tmp_path / "images").mkdir()
    assert_each(problems_of(lambda: Folder(tmp_path, NAMES)), "images: empty", "masks: no such folder")
    assert_each(problems_of(lambda: MassachusettsRoads(tmp_path)), "train/sat: no such", "train/map: no such")
    assert len(problems_of(lambda: CamVid(tmp_path))) == 6
    assert len(problems_of(lambda: Cityscapes(tmp_path))) == 2
    assert_each(problems_of(lambda: BraTS(tmp_path)), "no folders BraTS-GLI-*")
    assert_each(problems_of(lambda: Decathlon(tmp_path)), "dataset.json: no such file")


def test_a_folder_of_volumes_is_pointed_to_the_right_class(tmp_path):
    root = layouts.write_volume_folder(tmp_path)
    assert_each(problems_of(lambda: Folder(root, NAMES)), "use lightning_calib.datasets.volume_folder.VolumeFolder")
    pictures = layouts.write_folder(tmp_path / "pictures")
    assert_each(problems_of(lambda: VolumeFolder(pictures, NAMES)), "use lightning_calib.datasets.folder.Folder")


def test_images_that_are_their_own_masks_are_refused(tmp_path):
    root = layouts.write_folder(tmp_path)
    assert_each(problems_of(lambda: Folder(root, NAMES, images="masks")), "images and masks are one folder")


def test_ignore_label_is_no_problem(tmp_path):
    root = layouts.write_folder(tmp_path)
    mask = np.full((64, 64), 255, np.uint8)
    layouts.save_picture(root / "masks" / "p00_a.png", mask)
    assert_each(problems_of(lambda: Folder(root, NAMES)), "labels [255] are out of range")
    module = Folder(root, NAMES, ignore_label=255)
    assert module.facts["p00_a"]["counts"] == [0, 0, 0]
    assert "label 255 is ignored" in module.summary()


def test_check_can_be_left_out(tmp_path):
    root = layouts.write_folder(tmp_path)
    truncate(root / "images" / "p00_a.png")
    assert len(problems_of(lambda: Folder(root, NAMES))) == 1
    assert Folder(root, NAMES, check=False).class_shares() is None


def test_groups(tmp_path):
    root = layouts.write_folder(tmp_path)
    (tmp_path / "pool.txt").write_text("p00_a\np01_a\np01_b\n")
    torn = problems_of(
        lambda: Folder(root, NAMES, group_regex="(p..)_", pool_list=tmp_path / "pool.txt", val_fraction=0)
    )
    assert_each(torn, "group 'p00' is in pool and training; list all of it")
    told = "10 cases (p00_a, p00_b, p01_a and 7 more): group_regex '(q..)_' does not fit the name"
    assert problems_of(lambda: Folder(root, NAMES, group_regex="(q..)_")) == [told]
    whole = problems_of(lambda: Folder(root, NAMES, group_regex="(?P<all>p)"))
    assert_each(whole, "no pool cases of 10 in all, which 1 all(s) keep together")
    with pytest.raises(ValueError, match="needs a pair of parentheses"):
        Folder(root, NAMES, group_regex="p.._")
    with pytest.raises(ValueError, match="is no regular expression"):
        Folder(root, NAMES, group_regex="(p.._")


def test_mask_values(tmp_path):
    root = layouts.write_folder(tmp_path, cases=4, classes=2)
    problems = problems_of(lambda: Folder(root, ["no", "yes"], mask_values=[0, 255]))
    assert_each(problems, "4 cases (p00_a, p00_b, p01_a and 1 more): values [1] are not among mask_values [0, 255]")
    with pytest.raises(ValueError, match="one value for each of the 2 classes"):
        Folder(root, ["no", "yes"], mask_values=[0, 0])
    with pytest.raises(ValueError, match="ignore_label 255 is also among mask_values"):
        Folder(root, ["no", "yes"], mask_values=[0, 255], ignore_label=255)


def repaint_masks(root, values):
    """Give the masks of a folder other values."""
    for path in (root / "masks").iterdir():
        layouts.save_picture(path, values(np.asarray(Image.open(path))))


def test_masks_that_hold_other_values_get_one_line_and_the_remedy(tmp_path):
    root = layouts.write_folder(tmp_path, cases=6, classes=2)
    repaint_masks(root, lambda mask: mask * 255)
    (problem,) = problems_of(lambda: Folder(root, ["no", "yes"]))
    assert problem.startswith("6 cases (p00_a, p00_b, p01_a and 3 more): masks hold [0, 255], classes are 0 to 1")
    assert problem.endswith("set mask_values: [0, 255]")
    sound = Folder(root, ["no", "yes"], mask_values=[0, 255])
    rng = np.random.default_rng(0)
    repaint_masks(root, lambda mask: np.where(mask > 0, rng.integers(128, 256, mask.shape), mask).astype(np.uint8))
    (problem,) = problems_of(lambda: Folder(root, ["no", "yes"]))
    assert problem.endswith("these are shades of grey: set mask_threshold: 127")
    thresholded = Folder(root, ["no", "yes"], mask_threshold=127)
    assert [thresholded.facts[name]["counts"] for name in sound.facts] == [
        facts["counts"] for facts in sound.facts.values()
    ]
    assert thresholded.preprocessing.mask_values == (0, 255)  # what masks of apply hold
    own = Folder(root, ["no", "yes"], mask_threshold=127, mask_values=[0, 9])
    assert own.facts == thresholded.facts
    assert own.preprocessing.mask_values == (0, 9)
    for names, options in (
        (NAMES, {}),
        (["no", "yes"], {"ignore_label": 255}),
    ):
        with pytest.raises(ValueError, match="mask_threshold is for two classes"):
            Folder(root, names, mask_threshold=127, **options)


@pytest.mark.parametrize(
    ("image", "mask", "options"),
    [("", "_mask", "mask_suffix: _mask"), ("_0000", "", "image_suffix: _0000"), ("_x", "_m1", "mask_suffix: _m1")],
)
def test_ends_of_names_are_found_out(tmp_path, image, mask, options):
    root = layouts.write_folder(tmp_path, cases=6)
    for folder, end in (("images", image), ("masks", mask)):
        for path in list((root / folder).iterdir()):
            path.rename(path.with_stem(f"{path.stem}{end}"))
    (problem,) = problems_of(lambda: Folder(root, NAMES))
    assert options in problem
    assert sorted(Folder(root, NAMES, image_suffix=image, mask_suffix=mask).facts) == sorted(
        f"p0{n}_{side}" for n in range(3) for side in "ab"
    )


def test_volumes_with_ends_of_names(tmp_path):
    root = layouts.write_volume_folder(tmp_path)
    for path in list((root / "masks").iterdir()):
        path.rename(path.with_name(path.name.replace(".nii.gz", "_seg.nii.gz")))
    assert_each(problems_of(lambda: VolumeFolder(root, NAMES)), "set mask_suffix: _seg")
    assert len(VolumeFolder(root, NAMES, mask_suffix="_seg").facts) == 6


def test_classes_that_are_none(tmp_path):
    root = layouts.write_folder(tmp_path, cases=4)
    assert_each(
        problems_of(lambda: Folder(root, NAMES, background_class=7, ignore_label=2)),
        "background_class 7 is no class (class_names: 0 a, 1 b, 2 c)",
        "ignore_label 2 is a class",
    )
    for names, told in (
        (["a", "b", "a"], "two classes of one name; give each its own"),
        (["a", "b", "c\x1b[2J"], r"'c\x1b[2J' cannot be printed on a line"),
        (["a", "b", " "], "' ' cannot be printed on a line"),
    ):
        (problem,) = problems_of(lambda names=names: Folder(root, names))
        assert problem.startswith(told)
        assert problem.isprintable()


def test_wrong_parts_name_their_option(tmp_path):
    root = layouts.write_folder(tmp_path / "data", cases=4)
    for name, value, told in (
        ("pool_fraction", 1.0, "pool_fraction = 1.0; give a number from 0 to below 1"),
        ("pool_list", tmp_path / "nothing.txt", "nothing.txt cannot be read as a list of cases"),
        ("pool_list", tmp_path, "cannot be read as a list of cases"),
        ("class_names", ["a"], "one class or none; name two or more (class_names: 0 a)"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            Folder(**({"root": root, "class_names": NAMES} | {name: value}))


def test_one_and_two_cases_in_all(tmp_path):
    assert len(Folder(layouts.write_folder(tmp_path / "two", cases=2), NAMES).splits.train) == 1
    assert_each(
        problems_of(lambda: Folder(layouts.write_folder(tmp_path / "one", cases=1), NAMES)), "no pool cases of 1 in all"
    )


def test_images_of_another_kind(tmp_path):
    root = layouts.write_folder(tmp_path)
    (root / "images" / "p02_a.png").unlink()
    np.save(root / "images" / "p02_a.npy", np.zeros((64, 64, 5), np.float32))
    assert_each(problems_of(lambda: Folder(root, NAMES)), "the image has 5 channels, the others 3")
    np.save(root / "images" / "p02_a.npy", np.zeros((64, 64, 3), np.float32))
    assert_each(problems_of(lambda: Folder(root, NAMES)), "float32, not 8 bits as the others; set normalize: image")
    assert Folder(root, NAMES, normalize="image").normalization == "image"
    wrong = layouts.write_folder(tmp_path / "npy", suffix=".npy")
    assert_each(problems_of(lambda: Folder(wrong, NAMES, normalize="imagenet")), "set normalize: image")


def test_pickled_arrays_are_refused(tmp_path):
    root = layouts.write_folder(tmp_path, suffix=".npy")
    np.save(root / "images" / "p00_a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert_each(problems_of(lambda: Folder(root, NAMES)), "allow_pickle=False")


def test_cityscapes(tmp_path):
    root = layouts.write_cityscapes(tmp_path)
    (root / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png").unlink()
    (root / "leftImg8bit/val/munster/munster_000000_000019_leftImg8bit.png").unlink()
    path = root / "gtFine/val/munster/munster_000001_000019_gtFine_labelIds.png"
    layouts.save_picture(path, np.full((64, 128), 77, np.uint8))
    assert_each(
        problems_of(lambda: Cityscapes(root)),
        "aachen_000000_000019_leftImg8bit.png: lacks its mask",
        "munster_000000_000019_gtFine_labelIds.png: lacks its image",
        "munster_000001_000019_gtFine_labelIds.png: [77] are no label ids of Cityscapes",
    )


def test_massroads(tmp_path):
    root = layouts.write_massroads(tmp_path)
    layouts.save_picture(root / "train/map/10000000_15.tif", np.full((64, 64), 40, np.uint8))
    (root / "valid/map/10000001_15.tif").unlink()
    assert_each(
        problems_of(lambda: MassachusettsRoads(root)),
        "train/map/10000000_15.tif: values [40]; a road mask holds 0 and 255",
        "valid/sat/10000001_15.tiff: no mask",
    )


def test_massroads_without_a_pool(tmp_path):
    root = layouts.write_massroads(tmp_path, valid=0, test=0)
    assert_each(problems_of(lambda: MassachusettsRoads(root)), "no pool cases")


def test_brats(tmp_path):
    root = layouts.write_brats(tmp_path, patients=5)
    (root / "BraTS-GLI-00000-100/BraTS-GLI-00000-100-t2f.nii.gz").unlink()
    truncate(root / "BraTS-GLI-00001-100/BraTS-GLI-00001-100-t1n.nii.gz")
    layouts.save_nifti(root / "BraTS-GLI-00002-100/BraTS-GLI-00002-100-seg.nii.gz", np.full((32, 36, 34), 7, np.uint8))
    layouts.save_nifti(root / "BraTS-GLI-00003-100/BraTS-GLI-00003-100-t1c.nii.gz", np.ones((32, 36, 30), np.float32))
    problems = problems_of(lambda: BraTS(root))
    assert_each(
        problems,
        "BraTS-GLI-00000-100-t2f.nii.gz: no such file",
        "BraTS-GLI-00001-100-t1n.nii.gz",
        "labels [7] are out of range",
        "BraTS-GLI-00003-100-t1c.nii.gz: the volume is (30, 36, 32), its mask (34, 36, 32)",
    )


def test_volumes_must_be_finite(tmp_path):
    root = layouts.write_volume_folder(tmp_path)
    layouts.save_nifti(root / "images/scan1.nii.gz", np.full((24, 26, 22), np.nan, np.float32))
    layouts.save_nifti(root / "masks/scan2.nii.gz", np.full((24, 26, 22), 0.5, np.float32))
    assert_each(
        problems_of(lambda: VolumeFolder(root, NAMES)),
        "scan1.nii.gz: not every voxel is a finite number",
        "scan2.nii.gz: fractions such as 0.5",
    )


def test_decathlon(tmp_path):
    root = layouts.write_decathlon(tmp_path)
    (root / "labelsTr/tiny_002.nii.gz").unlink()
    assert_each(problems_of(lambda: Decathlon(root)), "tiny_002.nii.gz: named in dataset.json, but absent")
    index = json.loads((root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps(index | {"labels": {"0": "a", "2": "b"}}))
    assert_each(problems_of(lambda: Decathlon(root)), "labels [0, 2]; they must count up from 0")
    (root / "dataset.json").write_text(json.dumps({"labels": {}}))
    assert_each(problems_of(lambda: Decathlon(root)), "lacks modality, training")
    (root / "dataset.json").write_text("{")
    assert_each(problems_of(lambda: Decathlon(root)), "is not JSON")


def test_decathlon_channels(tmp_path):
    root = layouts.write_decathlon(tmp_path, cases=3, channels=2)
    index = json.loads((root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps(index | {"modality": {"0": "MRI"}}))
    first = root / "imagesTr" / "tiny_000.nii.gz"
    assert_each(problems_of(lambda: Decathlon(root)), f"3 files, such as {first}: 2 channels, not 1")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size = 0; give at least 1"),
        ({"num_workers": -1}, "num_workers = -1"),
        ({"val_fraction": 1.5}, "val_fraction = 1.5"),
        ({"num_pool": 0}, "num_pool = 0"),
        ({"samples_per_epoch": 0}, "samples_per_epoch = 0"),
        ({"crop_size": (0, 8)}, r"crop_size = \(0, 8\)"),
        ({"image_size": (8, -1)}, r"image_size = \(8, -1\)"),
        ({"size": (8, 0)}, r"size = \(8, 0\)"),
    ],
)
def test_options(options, text):
    with pytest.raises(ValueError, match=text):
        Shapes(**options)


def test_volume_options():
    with pytest.raises(ValueError, match=r"patch_size = \(8, 0, 8\)"):
        Shapes3D(patch_size=(8, 0, 8))
    with pytest.raises(ValueError, match="foreground = 2"):
        Shapes3D(foreground=2)


def test_batches_of_different_sizes_name_the_remedy(tmp_path):
    root = layouts.write_folder(tmp_path)
    layouts.save_picture(root / "images" / "p00_a.png", np.zeros((32, 64, 3), np.uint8))
    layouts.save_picture(root / "masks" / "p00_a.png", np.zeros((32, 64), np.uint8))
    (tmp_path / "pool.txt").write_text("p04_a\n")
    module = Folder(root, NAMES, batch_size=9, val_fraction=0, pool_list=tmp_path / "pool.txt")
    with pytest.raises(ValueError, match=r"differ in size: .*p00_a \(3, 32, 64\).*set crop_size"):
        list(module.train_dataloader())
    cropped = Folder(root, NAMES, batch_size=9, val_fraction=0, pool_list=tmp_path / "pool.txt", crop_size=(48, 48))
    assert next(iter(cropped.train_dataloader()))["image"].shape == (9, 3, 48, 48)


def test_a_case_outside_the_pool_cannot_be_restored(tmp_path):
    import torch

    module = VolumeFolder(layouts.write_volume_folder(tmp_path), NAMES, check=False)
    with pytest.raises(ValueError, match="'scan9' is no case of the pool set"):
        module.restore(torch.zeros(3, 4, 4, 4), "scan9")
    with pytest.raises(ValueError, match=r"logits of shape \(4, 4, 4\); the network saw \(22, 26, 24\)"):
        module.restore(torch.zeros(3, 4, 4, 4), module.pool_ids[0])
