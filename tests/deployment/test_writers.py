"""The table of formats: which one writes a case, and what a package can add."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.maps import CalibratedMaps, Legend
from lightning_calib.deployment.writers import WRITERS, MapWriter, register_writer, writer_for

AFFINE = np.diag([1.0, 2.0, 3.0, 1.0]).tolist()


def case_maps(shape=(4, 5, 6), geometry=None, classes=3, **legend):
    """Random maps of a case."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand((classes, *shape), generator=generator).softmax(0)
    confidence, mask = probs.max(0)
    names = tuple(f"class {n}" for n in range(classes))
    return CalibratedMaps(probs, mask, geometry, legend=Legend(names, **legend), confidence=confidence)


@pytest.mark.parametrize(
    ("maps", "name"),
    [
        (case_maps(geometry={"affine": AFFINE}), "nifti"),
        (case_maps(), "arrays"),
        (case_maps((5, 6), {"affine": AFFINE}), "arrays"),
    ],
)
def test_the_format_follows_what_the_image_was_read_from(maps, name):
    assert writer_for(maps).name == name


def test_a_format_that_cannot_hold_the_maps_is_refused():
    with pytest.raises(DeploymentError, match="--format nifti needs a volume with an affine"):
        writer_for(case_maps(), "nifti")
    with pytest.raises(ValueError, match="unknown format of maps 'nifty'; did you mean nifti"):
        writer_for(case_maps(), "nifty")


def test_a_format_of_ones_own(tmp_path):
    @register_writer
    class Npz(MapWriter):
        name, needs = "npz", "nothing"

        def takes(self, maps):
            return False  # only by name

        def write(self, start, maps, precision, probabilities):
            path = start.with_suffix(".npz")
            np.savez(path, **maps.written_labels())
            return [path]

    try:
        assert writer_for(case_maps()).name == "arrays"
        Npz.takes = lambda self, maps: True
        assert writer_for(case_maps()).name == "npz"
        assert writer_for(case_maps(geometry={"affine": AFFINE})).name == "nifti"  # ours come first
        (path,) = writer_for(case_maps(values=(0, 7, 9)), "npz").write(tmp_path / "a", case_maps(), "16bit", True)
        assert set(np.load(path)) == {"mask"}
    finally:
        WRITERS.registered.clear()
    with pytest.raises(TypeError, match="not a subclass of MapWriter"):
        register_writer(type("Wrong", (), {"name": "wrong"}))


def test_masks_inside_a_structure_can_be_seen(tmp_path):
    """Viewers show grey values of 0 and 1 as one black."""
    maps = case_maps((5, 6))
    inside = maps.probs[1] > 0.4
    written = replace(maps, decided={"core_outer": inside})
    files = writer_for(written).write(tmp_path / "a", written, "16bit", True)
    seen = Image.open(tmp_path / "a_core_outer.png")
    assert (np.asarray(seen.convert("L")) == np.where(inside, 255, 0)).all()
    assert (np.asarray(Image.open(tmp_path / "a_mask.png")) == maps.mask.numpy()).all()
    held = load_file(files[0])
    assert torch.equal(held["core_outer"], inside.int())
