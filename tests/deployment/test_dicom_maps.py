"""DICOM segmentations and parametric maps: read back by other libraries, point by point, and judged by dciodvfy."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
import torch

from lightning_calib.datasets.dicom import read_series
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.maps import RegionMaps
from lightning_calib.deployment.writers import writer_for
from lightning_calib.outputs.store import OutputStore
from tests.deployment.runs import calibrate, volume_run, write_dicom_scan
from tests.deployment.test_writers import case_maps
from tests.dicom_series import OBLIQUE, STRAIGHT, write_series

VALUES = np.random.default_rng(0).integers(0, 99, (7, 6, 5))
STEP = 0.5 / 255 + 1e-7


def written(folder, precision="16bit", orientation=OBLIQUE, maps=case_maps, **legend):
    """Maps of a made-up series, and their files by name."""
    series = write_series(folder / "series", VALUES, orientation=orientation, modality=legend.pop("modality", "MR"))
    found = maps((7, 6, 5), read_series(series).geometry, **({"background": 0, "made_by": "cms_op(p)"} | legend))
    files = writer_for(found).write(folder / "case", found, precision, True)
    return found, {path.stem.removeprefix("case_"): path for path in files}


def by_place(path):
    """Frames of an object by the place of their slice, with the number of their segment; decoded by pydicom alone."""
    file = pydicom.dcmread(path)
    shared = file.SharedFunctionalGroupsSequence[0]
    frames = np.atleast_3d(file.pixel_array) if file.NumberOfFrames > 1 else file.pixel_array[None]
    found = {}
    for frame, groups in zip(frames, file.PerFrameFunctionalGroupsSequence, strict=True):
        place = tuple(round(float(x), 3) for x in groups.PlanePositionSequence[0].ImagePositionPatient)
        segment = groups.get("SegmentIdentificationSequence") or shared.get("SegmentIdentificationSequence")
        found[place, int(segment[0].ReferencedSegmentNumber) if segment else 0] = frame
    direction = shared.PlaneOrientationSequence[0].ImageOrientationPatient
    return found, [float(x) for x in direction], shared.PixelMeasuresSequence[0]


def slice_places(folder):
    """Places of the series' slices from the first to the last along the normal."""
    files = [pydicom.dcmread(path) for path in folder.iterdir()]
    normal = np.cross(files[0].ImageOrientationPatient[:3], files[0].ImageOrientationPatient[3:])
    files.sort(key=lambda file: np.dot(normal, np.array(file.ImagePositionPatient, float)))
    return [tuple(round(float(x), 3) for x in file.ImagePositionPatient) for file in files]


@pytest.mark.parametrize("orientation", [OBLIQUE, STRAIGHT, (0, 1, 0, 0, 0, -1)])
def test_segments_lie_where_the_voxels_are(tmp_path, orientation):
    maps, files = written(tmp_path, orientation=orientation)
    places = slice_places(tmp_path / "series")
    fractions, direction, measures = by_place(files["probs"])
    binary, _, _ = by_place(files["mask"])
    assert direction == pytest.approx(orientation)
    assert [float(x) for x in measures.PixelSpacing] == pytest.approx([0.8, 0.7])
    assert float(measures.SpacingBetweenSlices) == pytest.approx(2.5)
    empty = np.zeros((6, 5))
    for number, place in enumerate(places):
        for segment in (1, 2):  # class 0 is the background
            np.testing.assert_allclose(fractions[place, segment] / 255, maps.probs[segment, number], atol=STEP)
            np.testing.assert_array_equal(binary.get((place, segment), empty), maps.mask[number] == segment)


def test_another_library_reads_the_same_volume(tmp_path):
    maps, files = written(tmp_path)
    volume = highdicom.seg.segread(files["probs"]).get_volume()
    found = np.moveaxis(volume.array, -1, 0)
    ours = np.array(maps.geometry["affine"])
    if not np.allclose(np.diag([-1, -1, 1, 1]) @ volume.affine[:, [2, 1, 0, 3]], ours, atol=1e-3):
        found = found[:, ::-1]  # slices from the other end
        volume = volume.flip_spatial(0)
    np.testing.assert_allclose(np.diag([-1, -1, 1, 1]) @ volume.affine[:, [2, 1, 0, 3]], ours, atol=1e-3)
    np.testing.assert_allclose(found, maps.probs[1:], atol=STEP)
    segments = highdicom.seg.segread(files["mask"])
    assert [segments.get_segment_description(n).SegmentLabel for n in (1, 2)] == ["class 1", "class 2"]
    source = pydicom.dcmread(next((tmp_path / "series").iterdir()))
    for name in ("PatientID", "StudyInstanceUID", "FrameOfReferenceUID"):
        assert segments[name].value == source[name].value
    assert segments.SeriesInstanceUID != source.SeriesInstanceUID


@pytest.mark.parametrize(("precision", "error"), [("float32", 0), ("16bit", 0.5 / 65535), ("8bit", 0.5 / 65535)])
def test_confidence_is_a_parametric_map(tmp_path, precision, error):
    maps, files = written(tmp_path, precision)
    image = highdicom.imread(files["confidence"])
    volume = image.get_volume(apply_real_world_transform=True)
    places = slice_places(tmp_path / "series")
    frames, _, _ = by_place(files["confidence"])
    scale = 1 if precision == "float32" else 65535
    for number, place in enumerate(places):
        np.testing.assert_allclose(frames[place, 0] / scale, maps.confidence[number], atol=error + 1e-9)
    low, high = float(maps.confidence.min()), float(maps.confidence.max())
    assert (volume.array.min(), volume.array.max()) == pytest.approx((low, high), abs=error + 1e-7)


def test_without_a_background_every_class_is_a_segment(tmp_path):
    maps, files = written(tmp_path, background=None)
    binary = highdicom.seg.segread(files["mask"])
    assert binary.number_of_segments == 3
    frames, _, _ = by_place(files["mask"])
    for number, place in enumerate(slice_places(tmp_path / "series")):
        np.testing.assert_array_equal(frames.get((place, 1), np.zeros((6, 5))), maps.mask[number] == 0)


def nothing_found(shape, geometry, **legend):
    """A case of background alone."""
    maps = case_maps(shape, geometry, **legend)
    maps.mask.zero_()
    return maps


def regions(shape, geometry, **legend):
    """Two regions, each a map of its own."""
    maps = case_maps(shape, geometry, **legend)
    return RegionMaps(maps.probs[1:], maps.mask, geometry, legend=maps.legend, names=("probs_whole", "probs_core"))


def decided(shape, geometry, **legend):
    """With a further mask."""
    maps = case_maps(shape, geometry, **legend)
    return replace(maps, decided={"mask_outer": maps.probs[1] > 0.3})


def test_a_further_mask_is_a_segment(tmp_path):
    maps, files = written(tmp_path, maps=decided)
    frames, _, _ = by_place(files["mask_outer"])
    for number, place in enumerate(slice_places(tmp_path / "series")):
        np.testing.assert_array_equal(frames.get((place, 1), np.zeros((6, 5))), maps.decided["mask_outer"][number])


def test_a_mask_of_nothing_is_written(tmp_path):
    _, files = written(tmp_path, maps=nothing_found)
    assert not pydicom.dcmread(files["mask"]).pixel_array.any()


def test_each_region_is_a_segmentation(tmp_path):
    maps, files = written(tmp_path, maps=regions)
    assert set(files) == {"mask", "probs_whole", "probs_core"}
    frames, _, _ = by_place(files["probs_core"])
    for number, place in enumerate(slice_places(tmp_path / "series")):
        np.testing.assert_allclose(frames[place, 1] / 255, maps.probs[1, number], atol=STEP)


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dciodvfy is not installed (Debian: dicom3tools)")
@pytest.mark.parametrize("modality", ["MR", "CT"])
@pytest.mark.parametrize("precision", ["float32", "16bit"])
def test_dciodvfy_finds_no_error(tmp_path, modality, precision):
    for maps in (case_maps, nothing_found, regions):
        _, files = written(tmp_path / maps.__name__, precision, maps=maps, modality=modality)
        for path in files.values():
            told = subprocess.run(["dciodvfy", str(path)], capture_output=True, text=True, check=False)
            assert "Error" not in told.stderr + told.stdout, f"{path.name}: {told.stderr}"


def test_a_series_that_has_gone_is_named(tmp_path):
    maps, _ = written(tmp_path)
    shutil.rmtree(tmp_path / "series")
    with pytest.raises(DeploymentError, match=r"series: the DICOM series is not there any more; .* --format nifti"):
        writer_for(maps).write(tmp_path / "case", maps, "16bit", True)
    write_series(tmp_path / "series", VALUES, seed=5)
    with pytest.raises(DeploymentError, match="holds another series than the case was read from"):
        writer_for(maps).write(tmp_path / "case", maps, "16bit", True)


def test_without_the_extra_one_line_says_what_to_install(tmp_path, monkeypatch):
    maps, _ = written(tmp_path)
    monkeypatch.setitem(sys.modules, "highdicom", None)
    with pytest.raises(DeploymentError, match=r'pip install "lightning-calib\[dicom\]", or --format nifti'):
        writer_for(maps).write(tmp_path / "case", maps, "16bit", True)


@pytest.fixture(scope="module")
def dicom_run(tmp_path_factory):
    """A run on DICOM series, deployed."""
    folder = volume_run(tmp_path_factory.mktemp("dicom_run"), write_dicom_scan)
    assert calibrate("deploy", "--calibration", folder / "calibration", "--pipeline", "ts(z)") == 0
    return folder


def test_a_run_on_series_writes_segmentations(dicom_run, tmp_path):
    """New series and stored outputs give the same objects; NIfTI on request lies at the same points."""
    images = dicom_run.parents[1] / "data" / "images"
    common = ["--deployed", dicom_run / "deployed"]
    for name, line in {
        "images": ["--images", images],
        "one": ["--images", images / "scan-03"],
        "outputs": ["--outputs", dicom_run / "outputs"],
        "nifti": ["--images", images, "--format", "nifti", "--precision", "float32"],
    }.items():
        assert calibrate("apply", *common, *line, "--destination", tmp_path / name) == 0
    assert sorted(path.name for path in (tmp_path / "one").glob("*.dcm")) == [
        f"scan-03_{kind}.dcm" for kind in ("confidence", "mask", "probs")
    ]
    for case in OutputStore(dicom_run / "outputs"):
        exact = nibabel.load(tmp_path / "nifti" / f"{case.case_id}_probs.nii.gz")
        np.testing.assert_allclose(exact.affine, read_series(images / case.case_id).affine, atol=1e-4)
        mask = nibabel.load(tmp_path / "nifti" / f"{case.case_id}_mask.nii.gz").get_fdata()
        for name in ("images", "outputs"):
            frames, _, _ = by_place(tmp_path / name / f"{case.case_id}_probs.dcm")
            masks, _, _ = by_place(tmp_path / name / f"{case.case_id}_mask.dcm")
            for number, place in enumerate(slice_places(images / case.case_id)):
                wanted = exact.get_fdata()[:, :, number, 1].T
                frame = frames.get((place, 1), np.zeros_like(wanted))
                np.testing.assert_allclose(frame / 255, wanted, atol=STEP + 2e-5)
                np.testing.assert_array_equal(masks.get((place, 1), np.zeros_like(wanted)), mask[:, :, number].T)
        assert torch.equal(case.valid, torch.from_numpy(read_valid(images / case.case_id)))


def test_the_commands_of_the_docs_run(dicom_run, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(.*?)```", page.partition("### DICOM")[2], re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "scans").symlink_to(dicom_run)
    (tmp_path / "new_scans").symlink_to(dicom_run.parents[1] / "data" / "images")
    monkeypatch.chdir(tmp_path)
    for line in commands.splitlines():
        assert calibrate(*shlex.split(line)[2:]) == 0
    assert len(list(Path("maps").glob("*.dcm"))) == 36
    assert len(list(Path("maps-of-outputs").glob("*.dcm"))) == 21


def read_valid(folder):
    """The box of voxels that are not zero."""
    inside = read_series(folder).array != 0
    box = np.zeros(inside.shape, bool)
    ends = [np.flatnonzero(inside.any(axis=tuple(a for a in range(3) if a != axis)))[[0, -1]] for axis in range(3)]
    box[tuple(slice(first, last + 1) for first, last in ends)] = True
    return box
