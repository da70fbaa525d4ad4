"""Shapes, dtypes, chunks, bad input, names and files."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from lightning_calib.calibrators import (
    CALIBRATORS,
    PAPER_PIPELINES,
    Pipeline,
    PipelineName,
    base,
    expand_pipelines,
    load_calibrator,
    read_header,
    save_calibrator,
)
from lightning_calib.functional import pool
from tests.calibrators.helpers import NAMES, VOXELWISE, hard_logits, randomized
from tests.features import build, fed


@pytest.mark.parametrize("name", VOXELWISE)
@pytest.mark.parametrize("shape", [(7, 4), (2, 4, 9), (2, 4, 5, 6), (1, 4, 3, 5, 6)])
def test_any_number_of_spatial_axes(name, shape):
    calibrator = randomized(name, 4, 0)
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    rows = logits.movedim(1, -1).reshape(-1, 4)
    expected = calibrator(rows).view(*logits.movedim(1, -1).shape).movedim(-1, 1)
    torch.testing.assert_close(calibrator(logits), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("given_dtype", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_precision(name, given_dtype, computed):
    logits = hard_logits(0, "normal", 3, given_dtype)
    assert build(name, 3)(logits).dtype == computed
    if name != "identity":
        assert build(name, 3).double()(logits).dtype == torch.float64


@pytest.mark.parametrize("name", NAMES)
def test_autocast_is_off_inside(name):
    calibrator, logits = randomized(name, 4, 0), hard_logits(0, "normal", 4)
    expected = calibrator(logits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(calibrator(logits), expected)


@pytest.mark.parametrize("name", VOXELWISE)
def test_chunks_change_nothing(name, monkeypatch):
    calibrator = randomized(name, 4, 0, dtype=torch.float64)
    logits = torch.randn(2, 4, 15, 17, dtype=torch.float64)
    whole = calibrator(logits)
    monkeypatch.setattr(base, "CHUNK_VALUES", 100)
    torch.testing.assert_close(calibrator(logits), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(1, 5, 6, 6), r"\(B, 3, \*S\), got the shape \(1, 5, 6, 6\) with 5 entries on axis 1"),
        (torch.zeros(1, 3, 6, 6, dtype=torch.int64), r"got torch.int64; convert with .float\(\)"),
        (torch.zeros(3), "without a class axis"),
        (torch.zeros(1, 3, 6, 6).index_fill(3, torch.tensor(2), torch.nan), r"got nan at \(0, 0, 0, 2\) and 17 more"),
        (torch.full((1, 3, 6, 6), torch.inf), "must be finite, got inf"),
    ],
)
def test_bad_logits_are_named(name, logits, message):
    with pytest.raises(ValueError, match=message):
        build(name, 3)(logits)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("tss", 3), r"unknown calibrator 'tss'; did you mean ts\? There are: identity, ts, ets, vs"),
        (lambda: build("ts", 1), "at least 2 classes, got num_classes=1"),
        (lambda: build("lts", 3, spatial_dims=4), "must be 2 or 3, got 4"),
        (lambda: build("lts", 3, through_plane=3), "0, 1 or 2; got 3"),
        (lambda: build("cms_op", 3, parametrization="relu"), "'clamp' or 'softplus', got 'relu'"),
        (lambda: PipelineName.parse("ts"), r"'ts' is not a pipeline; write calibrator\(pooling\)"),
        (lambda: PipelineName.parse("tss(z)"), "unknown calibrator 'tss'"),
        (lambda: PipelineName.parse("ts(q)"), "unknown pooling 'q'; choose one of z, p, p0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_misspelt_options_are_refused():
    with pytest.raises(TypeError, match="parametrisation"):
        build("cms_op", 3, parametrisation="clamp")


def test_the_papers_set():
    names = expand_pipelines(["paper"])
    assert len(names) == len(PAPER_PIPELINES) == 19
    assert sum(name.calibrator != "identity" for name in names) == 16
    fitted = [name for name in CALIBRATORS if not name.endswith("stack")]
    assert len(expand_pipelines(["all"])) == 1 + 2 * len(fitted)


@given(st.sampled_from(NAMES), st.sampled_from(["z", "p", "p0"]))
def test_pipeline_names_survive_printing(calibrator, pooling):
    text = f"{calibrator}({pooling})"
    assert str(PipelineName.parse(text)) == text == str(Pipeline.parse(text, 3))


@pytest.mark.parametrize("pooling", ["z", "p", "p0"])
def test_a_pipeline_pools_then_calibrates(pooling):
    pipeline = Pipeline.parse(f"cms_op({pooling})", 4)
    pipeline.calibrator.load_state_dict(randomized("cms_op", 4, 0).state_dict())
    members = torch.randn(2, 3, 4, 5, 6)
    assert torch.equal(pipeline(members), pipeline.calibrator(pool(members, pooling)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_files_give_back_the_same_calibrator(name, dtype, tmp_path):
    options = {"parametrization": "softplus"} if name.startswith("cms") else {}
    calibrator = randomized(name, 3, 0, dtype=dtype, **options)
    path = tmp_path / "deep" / f"{name}.safetensors"
    save_calibrator(path, calibrator, class_names=["a", "b", "c"], fitted={"voxels": 7})
    loaded = fed(load_calibrator(path))
    logits = hard_logits(0, "normal", 3)
    assert torch.equal(loaded(logits), calibrator(logits))
    header = read_header(path)
    assert (header["name"], header["class_names"], header["fitted"]) == (name, ["a", "b", "c"], {"voxels": 7})
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lts", {"canonical": True}),
        ("lts", {"canonical": True, "through_plane": 2}),
        ("lts_ti", {"through_plane": 1}),
        ("cms_ap", {"parametrization": "softplus"}),
        ("fts", {"feature_names": ("votes", "entropy_7"), "num_knots": 3}),
        ("case_ts", {"ridge": 0.5}),
        ("fts_net", {"feature_names": ("gap", "rival_7"), "num_hidden": 3}),
    ],
)
def test_files_keep_the_options(name, options, tmp_path):
    calibrator = randomized(name, 3, 0, 0.2, spatial_dims=3, **options)
    save_calibrator(tmp_path / "a.safetensors", calibrator)
    loaded = fed(load_calibrator(tmp_path / "a.safetensors"))
    logits = torch.randn(1, 3, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(loaded(logits), calibrator(logits))
    assert loaded.translation_invariant == calibrator.translation_invariant
    assert loaded.options().items() >= options.items()


def test_files_of_local_scaling_without_the_option_are_read(tmp_path):
    """As earlier versions wrote them."""
    header = {"format_version": 1, "num_classes": 3, "spatial_dims": 2, "options": {"through_plane": 0}}
    for name in ("lts", "lts_ti"):
        calibrator, path = randomized(name, 3, 0), tmp_path / f"{name}.safetensors"
        save_file(calibrator.state_dict(), path, metadata={"lightning_calib": json.dumps(header | {"name": name})})
        logits = hard_logits(0, "normal", 3)
        assert torch.equal(load_calibrator(path)(logits), calibrator(logits))


def test_broken_and_foreign_files_are_named(tmp_path):
    path = tmp_path / "ts.safetensors"
    with pytest.raises(FileNotFoundError, match=r"no calibrator file at .*ts\.safetensors"):
        load_calibrator(path)
    save_calibrator(path, build("ms", 3))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"ts\.safetensors is not a whole safetensors file"):
        load_calibrator(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"ts\.safetensors is a safetensors file, but not one of a calibrator"):
        load_calibrator(path)
    save_file({"x": torch.zeros(1)}, path, metadata={"lightning_calib": json.dumps({"format_version": 99})})
    with pytest.raises(ValueError, match=r"format version 99, newer than this library's 1"):
        load_calibrator(path)
    with pytest.raises(ValueError, match="2 class names for 3 classes"):
        save_calibrator(path, build("ts", 3), class_names=["a", "b"])
