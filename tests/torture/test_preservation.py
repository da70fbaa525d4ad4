"""What is promised to be kept is kept: random parameters, ties, denormals, huge values, all types of numbers."""

import pytest
import torch

from lightning_calib.calibrators import build
from lightning_calib.deployment.export import save_onnx
from lightning_calib.functional.experts import winning_class
from tests.calibrators.helpers import randomized
from tests.torture.outcomes import ALL, VOXELS

pytestmark = pytest.mark.slow

WANTED = 7 * 10**8 if ALL else 10**7  # voxel-pipelines
WANTED_OF_GRAPHS = 3 * 10**8 if ALL else 10**7
CHUNKS_OF_GRAPHS = 200 if ALL else 21  # a graph: writing it takes seconds
CHUNK = 40_000
NAMES = ("identity", "ts", "ets", "cms_op", "cms_ap", "gs")
CLASSES = (2, 3, 5, 11, 19, 32)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def hard_voxels(generator, classes, dtype):
    """Logits ``(1, C, N)``: smooth ones, whole numbers with ties, steps of one unit in the last place, extremes."""
    normal = torch.randn(1, classes, CHUNK, generator=generator)
    quarter = CHUNK // 4
    normal[..., :quarter] = normal[..., :quarter].mul(2).round()
    normal[..., quarter : 2 * quarter] = 5 + normal[..., quarter : 2 * quarter] * 1e-7
    scale = 10.0 ** torch.randint(-40, 30, (1, 1, quarter), generator=generator).float()
    normal[..., 2 * quarter : 3 * quarter] *= scale
    return normal.clamp(-3e4, 3e4).to(dtype) if dtype == torch.float16 else normal.to(dtype)


def broken(calibrator, logits):
    """Voxels at which the argmax changed or, where the order is promised, two classes changed places."""
    log_probs = calibrator(logits)
    wide = logits.double()
    flips = int((winning_class(log_probs) != winning_class(logits)).sum())
    if calibrator.preserves != "order":
        return flips, 0
    order = wide.argsort(dim=1, descending=True, stable=True)
    found = log_probs.double().gather(1, order)
    return flips, int((found[:, 1:] > found[:, :-1]).sum())


@torch.no_grad()
def test_nothing_is_flipped():
    generator, seen, seed, wrong = torch.Generator().manual_seed(0), 0, 0, []
    while seen < WANTED:
        classes, dtype = CLASSES[seed % len(CLASSES)], DTYPES[seed // len(CLASSES) % len(DTYPES)]
        logits = hard_voxels(generator, classes, dtype)
        for name in NAMES:
            calibrator = build(name, classes) if name == "identity" else randomized(name, classes, seed)
            flips, inversions = broken(calibrator, logits)
            if flips or inversions:
                wrong.append(f"{name}, C = {classes}, {dtype}, seed {seed}: {flips} flips, {inversions} inversions")
            seen += CHUNK
        seed += 1
    VOXELS["voxel-pipelines without a flip or an inversion"] += seen if not wrong else 0
    assert not wrong, "\n".join(wrong)


def broken_graph(found, logits, preserves):
    """As :func:`broken`, of what a graph says."""
    log_probs, mask, _ = (torch.from_numpy(array) for array in found)
    flips = int(((mask != winning_class(logits)) | (winning_class(log_probs) != mask)).sum())
    if preserves != "order":
        return flips, 0
    ranked = log_probs.double().gather(1, logits.double().argsort(dim=1, descending=True, stable=True))
    return flips, int((ranked[:, 1:] > ranked[:, :-1]).sum())


@torch.no_grad()
def test_nothing_is_flipped_by_exported_graphs(tmp_path):
    """The same in ONNX, where nothing can be refused."""
    import onnxruntime

    generator, seen, seed, wrong = torch.Generator().manual_seed(1), 0, 0, []
    while seen < WANTED_OF_GRAPHS:
        classes, dtype = CLASSES[seed % len(CLASSES)], (torch.float32, torch.float16)[seed % 2]
        for name in NAMES:
            calibrator = build(name, classes) if name == "identity" else randomized(name, classes, seed)
            path = tmp_path / f"{name}.onnx"
            save_onnx(path, calibrator, dtype=dtype)
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            for _ in range(CHUNKS_OF_GRAPHS):
                logits = hard_voxels(generator, classes, dtype).view(1, classes, 200, -1)
                found = session.run(None, {"logits": logits.numpy()})
                flips, inversions = broken_graph(found, logits, calibrator.preserves)
                if flips or inversions:
                    told = f"{flips} flips, {inversions} inversions"
                    wrong.append(f"{name}, C = {classes}, {dtype}, seed {seed}: {told}")
                seen += CHUNK
        seed += 1
    VOXELS["voxel-pipelines in ONNX without a flip or an inversion"] += seen if not wrong else 0
    assert not wrong, "\n".join(wrong)
