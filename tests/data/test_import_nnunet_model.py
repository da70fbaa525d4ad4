"""True logits of a really trained nnU-Net: what nnU-Net makes of them is what nnU-Net writes."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nibabel
import numpy as np
import pytest

from lightning_calib.data.imports.nnunet_model import FoldPredictor
from lightning_calib.data.imports.nnunet_probs import ProbabilityFolders
from tests.data.nnunet_training import DATASET

LABELS = {"background": 0, "Anterior": 1, "Posterior": 2}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("nnunetv2") is None, reason="nnunetv2 is not installed (extra `nnunet`)"),
]


def make_raw(root: Path, source: Path, training: int = 5, held_out: int = 2) -> Path:
    """A few hippocampus volumes as nnU-Net wants them; held-out ones are zero outside a box, so that it crops them."""
    names = sorted(path.name for path in (source / "imagesTr").glob("[!.]*.nii.gz"))
    for number, name in enumerate(names[: training + held_out]):
        part = "Tr" if number < training else "Ts"
        for folder in (f"images{part}", f"labels{part}"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / "labelsTr" / name, root / f"labels{part}" / name)
        image = nibabel.load(source / "imagesTr" / name)
        voxels = np.asarray(image.dataobj).astype(np.float32) + 1
        if part == "Ts":
            voxels[:3], voxels[:, -2:] = 0, 0
        file = root / f"images{part}" / name.replace(".nii.gz", "_0000.nii.gz")
        nibabel.save(nibabel.Nifti1Image(voxels, image.affine), file)
    facts = {"channel_names": {"0": "MRI"}, "labels": LABELS, "numTraining": training, "file_ending": ".nii.gz"}
    (root / "dataset.json").write_text(json.dumps(facts))
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory, hippocampus_root):
    """Folder with a trained model of two folds and nnU-Net's own probabilities."""
    home = tmp_path_factory.mktemp("nnunet")
    raw = make_raw(home / "source", hippocampus_root)
    script = Path(__file__).with_name("nnunet_training.py")
    command = [sys.executable, str(script), str(raw), str(home / "home")]
    done = subprocess.run(command, env={**os.environ, "PYTHONWARNINGS": "ignore"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return home / "home"


@pytest.mark.filterwarnings("default")  # nnU-Net and what it imports are not ours to mend
def test_the_softmax_of_our_logits_is_what_nnunet_writes(trained):
    (model,) = (trained / "results" / DATASET).iterdir()
    raw = trained / "raw" / DATASET
    ours = FoldPredictor(model, raw / "imagesTs", raw / "labelsTs", device="cpu", trusted=True)
    theirs = ProbabilityFolders([trained / "predicted" / f"fold_{fold}" for fold in range(2)], raw / "labelsTs")
    assert ours.case_ids == theirs.case_ids
    assert [member.name for member in ours.members()] == ["fold_0", "fold_1"]
    assert len({member.sha256 for member in ours.members()}) == 2
    for case_id in ours.case_ids:
        own, written = ours.load(case_id), theirs.load(case_id)
        image = np.asarray(nibabel.load(raw / "imagesTs" / f"{case_id}_0000.nii.gz").dataobj).T
        expected = np.zeros(image.shape, dtype=bool)
        expected[:, :-2, 3:] = True
        np.testing.assert_array_equal(own.valid, expected)
        np.testing.assert_array_equal(written.valid, expected)
        np.testing.assert_array_equal(own.target, written.target)
        assert own.geometry == written.geometry
        logits = own.scores[:, :, expected].astype(np.float64)
        probs = np.exp(logits - logits.max(1, keepdims=True))
        probs /= probs.sum(1, keepdims=True)
        np.testing.assert_allclose(probs, np.exp(written.scores[:, :, expected]), atol=1e-5)
        energy = np.log(np.exp(logits).sum(1))
        assert energy.std() > 1e-3  # logits, and not log-probabilities
        assert not np.array_equal(own.scores[0], own.scores[1])
