"""Exported graphs say what the library says: on ties, on float16, for other sizes than they were traced with."""

import hypothesis.strategies as st
import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given

from lightning_calib.calibrators import CALIBRATORS, Pipeline, Stack
from lightning_calib.calibrators.base import features_of, seen_by
from lightning_calib.deployment.export import export_program, save_onnx, save_program
from lightning_calib.functional import experts, ordering, preservation
from lightning_calib.functional.features import NEED_MEMBERS
from lightning_calib.functional.pooling import pool
from tests.calibrators.helpers import randomized
from tests.features import features_like

SIZES = {2: [(1, 9, 4), (3, 5, 13)], 3: [(1, 4, 6, 5), (2, 3, 2, 8)]}  # batch and spatial size


def tied(shape, seed, dtype):
    """Scores with many ties, some one ulp apart."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(-2, 3, shape, generator=generator).to(dtype)
    up = (levels.float() * (1 + 2.0 ** (-10 if dtype == torch.float16 else -23))).to(dtype)
    return torch.where(torch.rand(shape, generator=generator) < 0.3, up, levels)


def tying(name, **options):
    """A calibrator with random parameters, some of which put all classes on a level."""
    if name == "stack":
        return Stack.of(
            [tying(part, **options) for part in ("identity", "cms_op", "ets", "lts_ti")], [0.1, 0.4, 0.2, 0.3]
        )
    calibrator = randomized(name, 4, seed=1, scale=0.3, **options)
    with torch.no_grad():
        if name.startswith("cms"):
            calibrator.inner[:2], calibrator.bias_gaps[:2] = 0.0, 0.0
        if name == "ets":
            calibrator.weights.copy_(torch.tensor([0.0, 0.0, 1.0]))
    return calibrator


def features_for(calibrator, logits):
    """What a graph makes of pooled logits, or gets where it cannot."""
    if NEED_MEMBERS.intersection(calibrator.feature_names):
        return features_like(logits, len(calibrator.feature_names))
    return features_of(calibrator, logits)


def onnx_outputs(path, scores):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    assert [output.name for output in session.get_outputs()] == ["log_probs", "mask", "confidence"]
    dims = scores.ndim - (3 if entry.name == "member_logits" else 2)
    free = ["batch", *("depth", "height", "width")[-dims:]]
    assert [size for size in entry.shape if isinstance(size, str)] == free
    assert session.get_outputs()[1].shape == free
    assert b"lightning_calib" not in path.read_bytes()  # nothing of the machine that wrote it
    return [torch.from_numpy(array) for array in session.run(None, {entry.name: scores.numpy()})]


def assert_same(found, calibrator, pooled, where=None, features=None):
    """Log-probabilities to 1e-5 (of their size, where that is above 1), the mask exactly, no flip."""
    log_probs, mask, confidence = found
    with torch.no_grad():
        expected = calibrator(pooled, *seen_by(calibrator, features))
    inside = torch.ones(mask.shape, dtype=torch.bool) if where is None else where
    chosen = inside.unsqueeze(1).expand_as(expected)
    torch.testing.assert_close(log_probs[chosen], expected[chosen], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(confidence[inside], expected.amax(1).exp()[inside], rtol=0, atol=1e-5)
    if calibrator.preserves:
        assert torch.equal(log_probs.argmax(1), mask)
        assert torch.equal(mask[inside], pooled.argmax(1)[inside])


@pytest.mark.parametrize(
    ("name", "dims", "dtype"),
    [
        ("cms_op", 2, torch.float32),
        ("cms_ap", 3, torch.float16),
        ("ets", 3, torch.float16),
        ("lts", 2, torch.float32),
        ("cdc", 2, torch.float32),
        ("gs", 3, torch.float16),
        ("stack", 2, torch.float16),
    ],
)
def test_onnx_of_a_calibrator(name, dims, dtype, tmp_path):
    calibrator = tying(name, spatial_dims=dims)
    save_onnx(tmp_path / "calibrator.onnx", calibrator, dtype=dtype)
    for seed, (batch, *size) in enumerate(SIZES[dims]):
        logits = tied((batch, 4, *size), seed, dtype)
        assert_same(onnx_outputs(tmp_path / "calibrator.onnx", logits), calibrator, logits)


def test_onnx_makes_the_features_of_a_network(tmp_path):
    calibrator = tying("fts_net")
    save_onnx(tmp_path / "calibrator.onnx", calibrator)
    for seed, (batch, *size) in enumerate(size for size in SIZES[2] if min(size[1:]) >= 3):
        logits = tied((batch, 4, *size), seed, torch.float32)
        found = onnx_outputs(tmp_path / "calibrator.onnx", logits)
        assert_same(found, calibrator, logits, features=features_for(calibrator, logits))


@pytest.mark.parametrize(("name", "dims", "dtype"), [("cms_op(p)", 3, torch.float16), ("ts(z)", 2, torch.float32)])
def test_onnx_of_a_pipeline(name, dims, dtype, tmp_path):
    pipeline = Pipeline.parse(name, 4, dims)
    pipeline.calibrator = randomized(pipeline.calibrator.name, 4, seed=2, scale=0.3, spatial_dims=dims)
    save_onnx(tmp_path / "pipeline.onnx", pipeline, num_members=3, dtype=dtype)
    for seed, (batch, *size) in enumerate(SIZES[dims]):
        members = tied((batch, 3, 4, *size), seed, dtype)
        found = onnx_outputs(tmp_path / "pipeline.onnx", members)
        pooled = pool(members, pipeline.pooling)
        first, second = pooled.topk(2, dim=1).values.unbind(1)
        decided = first - second > 1e-5  # elsewhere members cancel, and rounding picks the pooled winner
        assert decided.float().mean() > 0.5
        assert_same(found, pipeline.calibrator, pooled, decided)


@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_torch_export(name, tmp_path):
    dims = 3 if name in ("lts_ti", "cms_op") else 2
    calibrator = randomized(name, 3, seed=3, scale=0.3, spatial_dims=dims)
    program = export_program(calibrator)
    if name == "cms_op":
        save_program(tmp_path / "calibrator.pt2", program)
        program = torch.export.load(tmp_path / "calibrator.pt2")
    for seed, (batch, *size) in enumerate(SIZES[dims]):
        if calibrator.feature_names and min(size) < 3:
            continue  # there are no boxes around voxels
        logits = tied((batch, 3, *size), seed, torch.float32)
        features = features_for(calibrator, logits)
        taken = [logits, features] if NEED_MEMBERS.intersection(calibrator.feature_names) else [logits]
        assert_same(program.module()(*taken), calibrator, logits, features=features)


@given(st.floats(-(2.0**99), -(2.0**-60), width=32))
def test_next_above_is_the_next_float(value):
    tensor = torch.tensor([value])
    assert preservation.next_above(tensor).item() == np.nextafter(np.float32(value), np.float32(np.inf))


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_what_a_graph_computes_otherwise_is_the_same(seed, num_classes):
    logits = tied((2, num_classes, 5), seed, torch.float32)
    log_probs = tied((2, num_classes, 5), seed + 1, torch.float32) - 3
    weight, bias = torch.randn(num_classes, 3, num_classes), torch.randn(num_classes, 3)
    expert = logits.argmax(1)
    eager = [
        ordering.descending_order(logits),
        preservation.restore_order(log_probs, logits),
        preservation.restore_argmax(log_probs, logits),
        experts.apply_experts(weight, bias, logits, expert),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        compiled = [
            ordering.descending_order(logits),
            preservation.restore_order(log_probs, logits),
            preservation.restore_argmax(log_probs, logits),
            experts.apply_experts(weight, bias, logits, expert),
        ]
    for first, second in zip(eager[:3], compiled[:3], strict=True):
        assert torch.equal(first, second)
    torch.testing.assert_close(eager[3], compiled[3])
