"""DICOM series as volumes: order, values, place in space, and what is refused."""

import sys
from dataclasses import replace
from pathlib import Path

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.content import contents
from lightning_calib.datasets.dicom import open_series, read_series, series_spacing
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.orientation import turned
from lightning_calib.datasets.readers import SERIES, VOLUME_INPUTS, list_files, read_nifti, stem, suffix
from lightning_calib.datasets.volume_folder import VolumeFolder
from lightning_calib.datasets.volume_reader import VolumeReader, read_channels, spacing_of
from tests.dicom_series import OBLIQUE, STRAIGHT, write_series

RNG = np.random.default_rng(0)
VALUES = RNG.integers(-900, 1200, (7, 6, 5))
_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def highdicoms_volume(folder):
    """The same series as another library reads it: values, and affine in NIfTI's axes (x, y, z of the array)."""
    files = [pydicom.dcmread(path) for path in folder.iterdir()]
    volume = highdicom.get_volume_from_series(files)
    order = volume.affine[:, [2, 1, 0, 3]]  # slice, row, column -> column, row, slice
    return volume.array, _LPS_TO_RAS @ order


@pytest.mark.parametrize("orientation", [STRAIGHT, OBLIQUE, (0, 1, 0, 0, 0, -1), (1, 0, 0, 0, -1, 0)])
def test_values_and_places_are_those_of_another_reader(tmp_path, orientation):
    write_series(tmp_path / "a", VALUES, orientation=orientation, slope=0.5, intercept=-1024, modality="CT")
    found = read_series(tmp_path / "a")
    values, affine = highdicoms_volume(tmp_path / "a")
    ours, theirs = (nibabel.Nifti1Image(*each) for each in ((found.array.T, found.affine), (values.T, affine)))
    # The other reader may number slices from the other end: compare as points in space.
    ours, theirs = nibabel.as_closest_canonical(ours), nibabel.as_closest_canonical(theirs)
    np.testing.assert_allclose(ours.affine, theirs.affine, atol=1e-4)
    np.testing.assert_array_equal(ours.get_fdata(), theirs.get_fdata())
    np.testing.assert_array_equal(found.array, 0.5 * VALUES - 1024)
    assert found.spacing == pytest.approx((2.5, 0.8, 0.7)) == spacing_of(tmp_path / "a")
    assert found.geometry["dicom"]["folder"] == str(tmp_path / "a")


def test_slices_from_top_to_bottom_come_in_order_of_their_normal(tmp_path):
    """A series whose positions run against the normal is turned, and its affine with it."""
    write_series(tmp_path / "a", VALUES, orientation=STRAIGHT, origin=(0, 0, 0))

    def mirrored(number, header):
        header.ImagePositionPatient = [0.0, 0.0, -2.5 * number]

    write_series(tmp_path / "b", VALUES, orientation=STRAIGHT, change=mirrored)
    up, down = read_series(tmp_path / "a"), read_series(tmp_path / "b")
    np.testing.assert_array_equal(up.array, down.array[::-1])
    assert np.array(down.affine)[:3, 3] == pytest.approx([0, 0, -15])


def test_slices_with_their_own_slope(tmp_path):
    def scaled(number, header):
        header.RescaleSlope = number + 1.0

    write_series(tmp_path / "a", np.ones((4, 3, 3)), change=scaled, modality="CT")
    assert read_series(tmp_path / "a").array[:, 0, 0].tolist() == [1, 2, 3, 4]


def test_a_single_slice_takes_its_thickness(tmp_path):
    write_series(tmp_path / "a", VALUES[:1])
    assert series_spacing(tmp_path / "a") == pytest.approx((2.5, 0.8, 0.7))


def test_folders_of_slices_are_images(tmp_path):
    write_series(tmp_path / "scan.1", VALUES)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("no slice")
    (tmp_path / "notes" / ".hidden").write_text("")
    assert list_files(tmp_path, VOLUME_INPUTS) == [tmp_path / "scan.1"]
    assert suffix(tmp_path / "scan.1", VOLUME_INPUTS) == SERIES
    assert stem(tmp_path / "scan.1") == "scan.1"
    assert read_channels(tmp_path / "scan.1").array.shape == (1, 7, 6, 5)


def lost(folder, number):
    for path in folder.iterdir():
        if (
            pydicom.dcmread(path).ImagePositionPatient[2]
            == sorted(pydicom.dcmread(p).ImagePositionPatient[2] for p in folder.iterdir())[number]
        ):
            path.unlink()
            return


def test_a_missing_slice_is_refused(tmp_path):
    write_series(tmp_path / "a", VALUES, orientation=STRAIGHT)
    lost(tmp_path / "a", 3)
    with pytest.raises(ValueError, match=r"slices are 1 missing between IM\d+ and IM\d+ \(5 mm apart, the others 2.5"):
        read_series(tmp_path / "a")


def set_to(name, value, at=2):
    def change(number, header):
        if number == at:
            setattr(header, name, value)

    return change


def vast(number, header):
    header.Rows = header.Columns = 60000


def scaled_once(number, header):
    if number == 2:
        header.RescaleSlope, header.RescaleIntercept = 2.0, 0.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (set_to("SeriesInstanceUID", "1.2.3"), "holds 2 series (6 files of "),
        (set_to("PixelSpacing", [0.8, 0.9]), "slices differ in PixelSpacing ([0.8, 0.7]"),
        (set_to("ImageOrientationPatient", list(STRAIGHT)), "slices differ in ImageOrientationPatient"),
        (set_to("Rows", 3), "slices differ in Rows"),
        (set_to("Modality", "CT"), "slices differ in Modality"),
        (set_to("ImagePositionPatient", [-31.0, 12.5, 47.0]), "are at the same place; keep one"),
        (set_to("ImagePositionPatient", None), "has no ImagePositionPatient"),
        (set_to("RescaleSlope", 2.0), "one of RescaleSlope and RescaleIntercept without the other"),
        (scaled_once, "some slices have RescaleSlope, others have not"),
        (vast, "60000 x 60000 pixels, more than"),
        (set_to("NumberOfFrames", 2), "several frames in one file"),
        (set_to("SamplesPerPixel", 3), "colours"),
        (set_to("PixelData", b"\0\0"), "cannot be read as DICOM"),
    ],
)
def test_what_makes_no_volume_is_refused(tmp_path, change, told):
    write_series(tmp_path / "a", VALUES, change=change)
    with pytest.raises(ValueError, match="a") as problem:
        read_series(tmp_path / "a")
    assert told in str(problem.value)
    assert str(tmp_path / "a") in str(problem.value)


def test_a_tilted_gantry_is_refused(tmp_path):
    def tilted(number, header):
        header.ImagePositionPatient = [0.0, 0.5 * number, 2.5 * number]

    write_series(tmp_path / "a", VALUES, orientation=STRAIGHT, change=tilted)
    with pytest.raises(ValueError, match=r"shifted against each other by up to 3 mm \(a tilted gantry\)"):
        read_series(tmp_path / "a")


def test_what_is_no_dicom_is_named(tmp_path):
    write_series(tmp_path / "a", VALUES)
    (tmp_path / "a" / "broken.dcm").write_bytes(b"no dicom")
    with pytest.raises(ValueError, match=r"broken.dcm: cannot be read as DICOM"):
        read_series(tmp_path / "a")


def test_without_the_extra_one_line_says_what_to_install(tmp_path, monkeypatch):
    write_series(tmp_path / "a", VALUES)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(ValueError, match=r'DICOM files need pydicom: pip install "lightning-calib\[dicom\]"'):
        read_series(tmp_path / "a")


def test_a_changed_slice_changes_what_a_case_is_made_of(tmp_path):
    folder = write_series(tmp_path / "a", VALUES)
    case = Case("a", (folder,))
    before = contents([case])
    files = sorted(folder.iterdir())
    files[0].rename(folder / "another_name")
    assert contents([case]) == before
    write_series(folder, VALUES + 1)
    assert contents([case]) != before


def masked_folder(root: Path, count: int = 4, **options) -> Path:
    """``images/<case>/`` of slices and ``masks/<case>.nii.gz`` in another order of axes."""
    for number in range(count):
        labels = (RNG.random((7, 6, 5)) > 0.6).astype(np.uint8)
        folder = write_series(root / "images" / f"p{number}", 100 * labels + number, seed=number, **options)
        image = read_series(folder)
        whole = nibabel.Nifti1Image(labels.T, image.affine)
        (root / "masks").mkdir(exist_ok=True)
        nibabel.save(whole.as_reoriented([[1, -1], [2, 1], [0, -1]]), root / "masks" / f"p{number}.nii.gz")
    return root


def test_masks_in_another_order_lie_on_the_image(tmp_path):
    data = VolumeFolder(masked_folder(tmp_path), ["rest", "core"], patch_size=(4, 4, 4), pool_fraction=0.5)
    for case in data.splits.all:
        file, target = data.volume_reader.load(case)
        assert target.shape == (7, 6, 5) != read_nifti(case.mask).array.shape
        np.testing.assert_array_equal(file.array[0] > 50, target == 1)
    sample = data.dataset(data.splits.pool, "predict")[0]
    assert sample["geometry"]["dicom"]["series"] == open_series(data.splits.pool[0].images[0]).facts(tmp_path)["series"]


def segmented(root, labels, kind="BINARY", **place):
    """A series and its segmentation by another library, whose frames come from the last slice to the first."""
    folder = write_series(root / "images" / "a", 50 * labels, **place)
    files = sorted((pydicom.dcmread(path) for path in folder.iterdir()), key=lambda file: file.ImagePositionPatient[2])
    normal = np.cross(files[0].ImageOrientationPatient[:3], files[0].ImageOrientationPatient[3:])
    order = np.argsort([np.dot(normal, np.array(file.ImagePositionPatient, float)) for file in files])[::-1]
    code = highdicom.sr.CodedConcept("1", "99TEST", "made up")
    pixels = labels[::-1].astype(np.uint8) if kind == "BINARY" else labels[::-1].astype(float) / 2
    numbers = (1, 2) if kind == "BINARY" else (1,)
    segments = [highdicom.seg.SegmentDescription(n, f"s{n}", code, code, "MANUAL") for n in numbers]
    source, uids = [files[number] for number in order], (highdicom.UID(), 7, highdicom.UID(), 1)
    made = highdicom.seg.Segmentation(source, pixels, kind, segments, *uids, "us", "test", "1", "1")
    (root / "masks").mkdir()
    made.save_as(root / "masks" / "a.dcm")
    return Case("a", (folder,), root / "masks" / "a.dcm")


@pytest.mark.parametrize("orientation", [STRAIGHT, OBLIQUE, (0, 1, 0, 0, 0, -1)])
def test_segmentations_are_masks(tmp_path, orientation):
    labels = RNG.integers(0, 3, (7, 6, 5))
    labels[[0, 3, 6]] = 0  # slices without a frame, at the ends and inside
    case = segmented(tmp_path, labels, orientation=orientation)
    file, target = VolumeReader().load(case)
    np.testing.assert_array_equal(target, labels)
    np.testing.assert_array_equal(file.array[0], 50 * target)
    assert VolumeReader(mask_values=(0, 2, 1)).load(case)[1].max() == 2
    with pytest.raises(ValueError, match=r"values \[2\] are not among mask_values"):
        VolumeReader(mask_values=(0, 1)).load(case)


def test_segmentations_that_are_no_masks_are_refused(tmp_path):
    case = segmented(tmp_path / "a", RNG.integers(0, 3, (7, 6, 5)), kind="FRACTIONAL")
    with pytest.raises(ValueError, match=r"a.dcm: holds probabilities; masks are binary segments"):
        VolumeReader().load(case)
    case = segmented(tmp_path / "b", RNG.integers(0, 3, (7, 6, 5)))
    other = write_series(tmp_path / "c", VALUES, orientation=STRAIGHT)
    with pytest.raises(ValueError, match=r"a.dcm: lies on another grid than its image"):
        VolumeReader().load(replace(case, images=(other,)))
    half = write_series(tmp_path / "half", VALUES[:4])
    with pytest.raises(ValueError, match=r"a.dcm: has segments outside of its image; is it of another series\?"):
        VolumeReader().load(replace(case, images=(half,)))
    case.mask.write_bytes(b"no dicom")
    with pytest.raises(ValueError, match=r"a.dcm: cannot be read as DICOM"):
        VolumeReader().load(case)


def test_a_folder_of_segmentations(tmp_path):
    for name in ("a", "b", "c"):
        segmented(tmp_path / name, RNG.integers(0, 3, (7, 6, 5)))
        for part, ending in (("images", ""), ("masks", ".dcm")):
            (tmp_path / "all" / part).mkdir(parents=True, exist_ok=True)
            (tmp_path / name / part / f"a{ending}").rename(tmp_path / "all" / part / f"{name}{ending}")
    data = VolumeFolder(tmp_path / "all", ["rest", "one", "two"], patch_size=(4, 4, 4))
    assert len(data.splits.all) == 3
    assert min(data.class_shares()) > 0.2


def test_where_series_belong_is_said(tmp_path):
    write_series(tmp_path / "a" / "images", VALUES)
    with pytest.raises(ValueError, match="images: holds DICOM slices; put each series into a folder of its own"):
        VolumeFolder(tmp_path / "a", ["rest", "core"])
    masked_folder(tmp_path / "b")
    with pytest.raises(ValueError, match=r"holds volumes; use .*VolumeFolder"):
        Folder(tmp_path / "b", ["rest", "core"])


def test_a_mask_on_another_grid_is_refused(tmp_path):
    masked_folder(tmp_path)
    path = tmp_path / "masks" / "p1.nii.gz"
    image = nibabel.load(path)
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), np.diag([0.7, 0.8, 2.5, 1])), path)
    with pytest.raises(ValueError, match=r"masks/p1.nii.gz: lies on another grid than .*images/p1; save the mask on"):
        VolumeFolder(tmp_path, ["rest", "core"])


def test_careless_headers_of_nifti_pairs_change_nothing(tmp_path):
    labels = RNG.integers(0, 2, (3, 4, 5)).astype(np.uint8)
    for name, affine in (("image", np.diag([-1.0, -1.0, 2.0, 1.0])), ("mask", np.eye(4))):
        nibabel.save(nibabel.Nifti1Image(labels, affine), tmp_path / f"{name}.nii.gz")
    case = Case("a", (tmp_path / "image.nii.gz",), tmp_path / "mask.nii.gz")
    np.testing.assert_array_equal(VolumeReader().load(case)[1], labels.T)
    turned_mask = nibabel.Nifti1Image(labels, np.diag([-1.0, -1.0, 2.0, 1.0])).as_reoriented([[0, -1], [1, 1], [2, 1]])
    nibabel.save(turned_mask, tmp_path / "mask.nii.gz")
    np.testing.assert_array_equal(VolumeReader().load(case)[1], labels.T)
    assert (VolumeReader().load(replace(case, mask=None))[1] == 0).all()


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(3)), st.tuples(*[st.sampled_from([-1, 1])] * 3), st.integers(0, 2**32 - 1))
def test_turning_is_what_nibabel_does(order, flips, seed):
    rng = np.random.default_rng(seed)
    directions, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    affine = np.eye(4)
    affine[:3] = np.c_[directions * rng.uniform(0.5, 3, 3), rng.normal(size=3) * 50]
    image = nibabel.Nifti1Image(rng.integers(0, 99, (3, 4, 5)).astype(np.int16), affine)
    other = image.as_reoriented(list(zip(order, flips, strict=True)))
    back = turned(np.asarray(other.dataobj).T, other.affine, affine, (5, 4, 3))
    np.testing.assert_array_equal(back, np.asarray(image.dataobj).T)
