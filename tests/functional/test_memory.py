"""Memory above the input on a full volume, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
import torch
sys.path.insert(0, "benchmarks")
from _measure import measure
from lightning_calib import functional as F

torch.set_num_threads(1)
shape = (240, 240, 155)
plane = torch.arange(240.0)
radius = ((plane[:, None, None] - 120) ** 2 + (plane[None, :, None] - 120) ** 2
          + (torch.arange(155.0)[None, None] - 77) ** 2).sqrt()
target = (radius / 25).long().clamp_(max=4)[None]
log_probs = torch.full((1, 5, *shape), -2.5)
log_probs.scatter_(1, target[:, None], 0.0)
for part in log_probs.split(20, dim=2):
    part.copy_(part.log_softmax(1))
small = slice(None), slice(None), slice(8), slice(8), slice(8)
F.image_statistics(log_probs[small], target[:, :8, :8, :8], classwise=True)  # what libraries load once
F.boundary_distance(target[:, :8, :8, :8])

def without():
    return F.image_statistics(log_probs, target, ignore_index=255, classwise=True)

def with_distance():
    return F.boundary_aware_calibration_error(log_probs, target, ignore_index=255)

print(json.dumps([measure(without).mebibytes, measure(with_distance).mebibytes]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RssAnon is read from /proc")
def test_a_volume_of_nine_million_voxels_fits():
    run = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    without, with_distance = json.loads(run.stdout)
    assert without < 200
    assert with_distance < 400
