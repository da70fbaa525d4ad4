"""Maps show what the calibrator says about the stored voxels, plane by plane."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_calib.calibrators import build
from lightning_calib.functional.boundary import boundary
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.previews import IGNORED, write_preview
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.report import maps
from lightning_calib.report.map_figures import confidence_figure, thumbnail_figure
from lightning_calib.report.maps import BENEFICIAL, HARMFUL, NEUTRAL, UNCHANGED, busiest_window, case_plane, free_energy

CLASSES = ["back", "liver", "tumour"]


def write_case(folder, shape, *, ignore_index=None, valid=None, scale=3.0, seed=0):
    """A store of one case with random logits; the target is the first member's argmax, disturbed."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(2, 3, *shape, generator=generator)
    target = (logits[0] + 2 * torch.randn(3, *shape, generator=generator)).argmax(0)
    if ignore_index is not None:
        target[..., 0] = ignore_index
    members = [Member("0"), Member("1")]
    writer = OutputWriter(folder, "toy", CLASSES, len(shape), members, background=0, ignore_index=ignore_index)
    writer.write("a", logits=logits, target=target, valid=valid)
    writer.finish()
    return OutputStore(folder)["a"]


def case_maps(case, pooling, calibrator, close_up=None, outside="exclude"):
    return case_plane(StoredCases(OutputStore(case.path.parents[1]), pooling, outside), "a", calibrator, close_up)


def softmax(z):
    e = np.exp(z - z.max(axis=0))
    return e / e.sum(axis=0)


def disturbed(name, **options):
    calibrator = build(name, 3, **options)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return calibrator


def test_an_image_is_shown_voxel_by_voxel(tmp_path):
    case = write_case(tmp_path / "s", (12, 9))
    calibrator = disturbed("ms")
    shown = case_maps(case, "z", calibrator)
    pooled = case.logits.double().mean(0).numpy()
    weight, bias = (p.detach().double().numpy()[0] for p in calibrator.assemble())
    after = softmax(np.einsum("ij,jhw->ihw", weight, pooled) + bias[:, None, None])
    target, before = case.target.numpy(), pooled.argmax(0)
    np.testing.assert_array_equal(shown.target, target)
    np.testing.assert_array_equal(shown.before, before)
    np.testing.assert_array_equal(shown.after, after.argmax(0))
    np.testing.assert_allclose(shown.confidence_before, softmax(pooled).max(0), rtol=1e-5)
    np.testing.assert_allclose(shown.confidence_after, after.max(0), rtol=1e-5)
    for y, b, a, kind in zip(target.flat, before.flat, after.argmax(0).flat, shown.flips.flat, strict=True):
        expected = UNCHANGED if a == b else HARMFUL if b == y else BENEFICIAL if a == y else NEUTRAL
        assert kind == expected
    assert {HARMFUL, BENEFICIAL, NEUTRAL} <= set(shown.flips.flat)


def test_ignored_voxels_are_blank_in_every_map(tmp_path):
    shown = case_maps(write_case(tmp_path / "s", (6, 7), ignore_index=255), "p", disturbed("ms"))
    for labels in (shown.target, shown.before, shown.after):
        assert (labels[:, 0] == IGNORED).all()
        assert (labels[:, 1:] >= 0).all()
    assert np.isnan(shown.confidence_before[:, 0]).all()
    assert not np.isnan(shown.confidence_after[:, 1:]).any()
    assert (shown.flips[:, 0] == UNCHANGED).all()


def test_ignored_voxels_make_no_border(tmp_path):
    shown = case_maps(write_case(tmp_path / "s", (6, 7), ignore_index=255), "p", disturbed("ms"))
    assert shown.has_border
    assert not replace(shown, target=np.where(shown.target == IGNORED, IGNORED, 1)).has_border


def test_of_a_volume_the_plane_with_most_foreground_is_shown(tmp_path):
    case = write_case(tmp_path / "s", (5, 6, 7))
    plane = int(np.argmax([(case.target[k] != 0).sum() for k in range(5)]))
    shown = case_maps(case, "z", disturbed("ms", spatial_dims=3))
    assert shown.plane == plane
    assert shown.title == f"a, slice {plane}"
    np.testing.assert_array_equal(shown.target, case.target[plane].numpy())
    np.testing.assert_array_equal(shown.before, case.logits.mean(0)[:, plane].argmax(0).numpy())


@pytest.mark.parametrize("through_plane", [0, 1, 2])
def test_local_temperatures_of_a_plane_are_those_of_the_volume(tmp_path, through_plane):
    case = write_case(tmp_path / "s", (4, 6, 7))
    calibrator = disturbed("lts", spatial_dims=3, through_plane=through_plane)
    shown = case_maps(case, "z", calibrator)
    pooled = case.pooled("z")[None]
    with torch.no_grad():
        whole, temperature = calibrator(pooled)[0], calibrator.temperature_map(pooled)[0, 0]
    np.testing.assert_allclose(shown.temperature, temperature[shown.plane].numpy(), rtol=1e-5)
    np.testing.assert_allclose(shown.confidence_after, whole[:, shown.plane].amax(0).exp().numpy(), rtol=1e-5)


def test_large_images_are_thinned_without_losing_a_harmful_flip(tmp_path, monkeypatch):
    case = write_case(tmp_path / "s", (23, 31))
    full = case_maps(case, "z", disturbed("ms"))
    monkeypatch.setattr(maps, "MAX_SIDE", 8)
    small = case_maps(case, "z", disturbed("ms"))
    shapes = {array.shape for array in (small.target, small.after, small.confidence_after, small.flips)}
    assert shapes == {(6, 8)}  # every fourth voxel
    np.testing.assert_array_equal(small.target, full.target[2::4, 2::4])
    np.testing.assert_allclose(small.confidence_after[0, 0], full.confidence_after[:4, :4].mean())
    for row, column in np.argwhere(full.flips == HARMFUL):
        if row // 4 < 6 and column // 4 < 8:
            assert small.flips[row // 4, column // 4] == HARMFUL


@pytest.mark.parametrize("name", ["ms", "lts_ti"])
def test_a_close_up_is_the_part_of_the_map_with_most_true_borders(tmp_path, name):
    case = write_case(tmp_path / "s", (13, 17), ignore_index=255)
    calibrator = disturbed(name)
    full, near = case_maps(case, "z", calibrator), case_maps(case, "z", calibrator, close_up=5)
    padded = np.pad(full.target, 1, constant_values=IGNORED)
    neighbours = np.stack([padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]])
    differ = (neighbours != full.target) & (neighbours != IGNORED) & (full.target != IGNORED)
    border = differ.any(0)
    length = {(i, j): border[i : i + 5, j : j + 5].sum() for i in range(9) for j in range(13)}
    top, left = max(length, key=lambda place: length[place])
    part = (slice(top, top + 5), slice(left, left + 5))
    for field in ("target", "before", "after", "flips", "confidence_before", "confidence_after"):
        np.testing.assert_array_equal(getattr(near, field), getattr(full, field)[part])
    if name == "lts_ti":
        np.testing.assert_array_equal(near.temperature, full.temperature[part])


def test_a_close_up_of_a_small_plane_is_the_plane(tmp_path):
    case = write_case(tmp_path / "s", (4, 9))
    assert case_maps(case, "z", disturbed("ms"), close_up=6).target.shape == (4, 6)


def test_close_ups_draw_the_true_borders_on_both_confidence_maps(tmp_path):
    near = case_maps(write_case(tmp_path / "s", (13, 17)), "z", disturbed("ms"), close_up=8)
    figure = confidence_figure([near], CLASSES, 0, close_up=True)
    truth, _, errors, before, after = figure.axes[:5]
    lines = [sum(len(contour.get_paths()[0].vertices) for contour in axes.collections) for axes in figure.axes[:5]]
    assert lines[:3] == [0, 0, 0]
    assert lines[3] == lines[4] > 0
    np.testing.assert_array_equal(before.images[0].get_array(), near.confidence_before)
    np.testing.assert_array_equal(after.images[0].get_array(), near.confidence_after)
    wrong = errors.images[0].get_array()
    assert (wrong[near.before != near.target] == wrong[near.before != near.target][0]).all()
    assert [axes.get_title(loc="left") or axes.get_title() for axes in (truth, before)] == [
        "truth",
        "confidence before",
    ]


@pytest.mark.parametrize("close_up", [None, 8])
def test_the_image_stands_beside_the_maps_at_the_same_place(tmp_path, close_up):
    case = write_case(tmp_path / "s", (13, 17))
    assert case_maps(case, "z", disturbed("ms"), close_up=close_up).image is None
    shade = torch.linspace(0, 1, 13 * 17).view(1, 13, 17)  # tells every pixel from every other
    write_preview(tmp_path / "s", "a", shade, case.target, 0, None)
    near = case_maps(case, "z", disturbed("ms"), close_up=close_up)
    assert near.image.shape[:2] == near.target.shape
    if close_up:
        rows, columns = busiest_window(boundary(case.target, IGNORED), close_up)
        np.testing.assert_array_equal(near.image[..., 0], case.preview.pixels[rows, columns, 0])
    titles = [axes.get_title(loc="left") for axes in confidence_figure([near], CLASSES, 0).axes]
    assert titles[:6] == ["image", "truth", "prediction", "errors", "confidence before", "confidence after"]


@pytest.mark.parametrize("count", [1, 4, 6])
def test_thumbnails_show_the_prediction_over_the_image(tmp_path, count):
    case = write_case(tmp_path / "s", (13, 17))
    plain = case_maps(case, "z", disturbed("ms"))
    write_preview(tmp_path / "s", "a", torch.linspace(0, 1, 26 * 34).view(1, 26, 34)[:, ::2, ::2], case.target, 0, None)
    pictured = case_maps(case, "z", disturbed("ms"))
    titles = [f"case {number}" for number in range(count)]
    figure = thumbnail_figure([plain] + [pictured] * (count - 1), titles, CLASSES, 0)
    assert [axes.get_title() or axes.get_title(loc="left") for axes in figure.axes] == titles
    assert len(figure.legends[0].get_texts()) == len(CLASSES)
    for axes, plane in zip(figure.axes, [plain] + [pictured] * (count - 1), strict=True):
        below, above = axes.images
        assert above.get_alpha() == (1.0 if plane.image is None else 0.5)
        painted = np.asarray(above.get_array())
        assert ((painted[..., 3] == 0) == (plane.before == 0)).all()  # the image shows through the background
        assert above.get_extent() == below.get_extent()


def test_free_energy_is_that_of_the_mean_logits_on_valid_voxels(tmp_path):
    valid = torch.ones(6, 7, dtype=torch.bool)
    valid[0] = False
    case = write_case(tmp_path / "s", (6, 7), valid=valid)
    energy, spread = free_energy(StoredCases(OutputStore(tmp_path / "s"), "z"), "a")
    expected = np.log(np.exp(case.logits.double().mean(0).numpy()).sum(0))
    np.testing.assert_allclose(energy[1:], expected[1:], rtol=1e-5)
    assert np.isnan(energy[0]).all()
    assert spread == pytest.approx(expected[1:].std(), rel=1e-5)


def test_voxels_outside_are_what_the_run_took_them_for(tmp_path):
    valid = torch.ones(6, 7, dtype=torch.bool)
    valid[0] = False
    case = write_case(tmp_path / "s", (6, 7), valid=valid)
    blank = case_maps(case, "z", build("identity", 3))
    certain = case_maps(case, "z", build("identity", 3), outside="background_certain")
    assert (blank.target[0] == IGNORED).all()
    np.testing.assert_array_equal(certain.target[0], case.target[0].numpy())
    assert (certain.before[0] == 0).all()
    np.testing.assert_allclose(certain.confidence_before[0], 1)
    np.testing.assert_array_equal(certain.confidence_before[1:], blank.confidence_before[1:])
