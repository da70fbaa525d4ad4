"""What calibrators promise to keep is kept in the files of `apply`, but for ties by rounding."""

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from lightning_calib.deployment.ensemble import calibrated
from lightning_calib.deployment.maps import Legend, as_maps
from lightning_calib.deployment.writers.base import writer_for
from tests.calibrators.helpers import randomized

AFFINE = {"affine": np.eye(4).tolist()}


def near_ties(seed, classes, spatial):
    """Logits ``(1, C, *S)`` whose classes are often a unit in the last place apart."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, classes, *spatial, generator=generator)
    steps = torch.randint(0, 4, logits.shape, generator=generator)
    base = logits[:, :1].expand_as(logits).contiguous()
    close = (base.view(torch.int32) + steps.int()).view(torch.float32)
    return torch.where(torch.rand(1, 1, *spatial, generator=generator) < 0.7, close, 3 * logits)


def check(logits, probs, mask, preserves):
    """``probs (C, *S)`` and ``mask (*S)`` as they were read from files."""
    assert (mask == logits[0].argmax(0)).all()
    winner = probs.gather(0, mask[None].long())[0]
    assert (winner == probs.amax(0)).all()  # of equals, the mask says which
    if preserves == "order":
        order = logits[0].argsort(dim=0, descending=True, stable=True)
        ranked = probs.gather(0, order)
        assert (ranked[1:] <= ranked[:-1]).all()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    name=st.sampled_from(["identity", "ts", "ets", "cms_op", "cms_ap", "gs"]),
    precision=st.sampled_from(["float32", "16bit", "8bit"]),
)
def test_written_probabilities_keep_order_and_decisions(tmp_path_factory, seed, name, precision):
    calibrator = randomized(name, 4, seed)
    logits = near_ties(seed, 4, (40, 50))
    with torch.no_grad():
        maps = as_maps(calibrated(logits, calibrator), None, Legend(), None)
    folder = tmp_path_factory.mktemp("maps")
    writer_for(maps).write(folder / "a", maps, precision, probabilities=True)
    found = load_file(folder / "a.safetensors")
    check(logits, found["probs"].double(), found["mask"], calibrator.preserves)
    assert (found["confidence"] == found["probs"].amax(0)).all()


@pytest.mark.parametrize("precision", ["float32", "16bit", "8bit"])
def test_volumes_keep_them_too(tmp_path, precision):
    calibrator, logits = randomized("cms_op", 3, 5), near_ties(5, 3, (9, 10, 11))
    with torch.no_grad():
        maps = as_maps(calibrated(logits, calibrator), None, Legend(), AFFINE)
    writer_for(maps).write(tmp_path / "a", maps, precision, probabilities=True)
    probs, mask = (nibabel.load(tmp_path / f"a_{kind}.nii.gz").get_fdata().T for kind in ("probs", "mask"))
    check(logits, torch.from_numpy(probs.copy()), torch.from_numpy(mask.copy()).long(), calibrator.preserves)
