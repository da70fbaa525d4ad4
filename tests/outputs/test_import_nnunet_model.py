"""True logits of a really trained nnU-Net: what nnU-Net makes of them is what nnU-Net writes."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from scipy.special import expit

from lightning_calib.cli.calibrate import main
from lightning_calib.outputs.imports.nnunet_probs import ProbabilityFolders
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.views import write_views
from tests.outputs.nnunet_training import DATASET

LABELS = {"background": 0, "Anterior": 1, "Posterior": 2}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("nnunetv2") is None, reason="nnunetv2 is not installed (extra `nnunet`)"),
]


def make_raw(root: Path, source: Path, training: int = 5, held_out: int = 2, **facts: Any) -> Path:
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
    usual = {"channel_names": {"0": "MRI"}, "labels": LABELS, "numTraining": training, "file_ending": ".nii.gz"}
    (root / "dataset.json").write_text(json.dumps(usual | facts))
    return root


def train(home: Path, raw: Path, folds: int = 2) -> Path:
    """Folder with a trained model and nnU-Net's own probabilities."""
    script = Path(__file__).with_name("nnunet_training.py")
    command = [sys.executable, str(script), str(raw), str(home / "home"), str(folds)]
    done = subprocess.run(command, env={**os.environ, "PYTHONWARNINGS": "ignore"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return home / "home"


def import_model(trained: Path) -> Path:
    """The outputs of all folds on the held-out volumes, as the command imports them."""
    raw = trained / "raw" / DATASET
    return import_part(trained, "Ts", trained / "outputs", "--training_images", str(raw / "imagesTr"))


def import_part(trained: Path, part: str, outputs: Path, *options: str) -> Path:
    """A store of what the model predicts on the images of a part, ``Tr`` or ``Ts``."""
    (model,) = (trained / "results" / DATASET).iterdir()
    raw = trained / "raw" / DATASET
    line = ["import", "nnunet", "--model", str(model), "--images", str(raw / f"images{part}"), "--device", "cpu"]
    line += ["--targets", str(raw / f"labels{part}"), "--outputs", str(outputs), "--trust_model_folder", "true"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # nnU-Net and what it imports are not ours to mend
        assert main([*line, *options]) == 0
    return outputs


@pytest.fixture(scope="module")
def trained(tmp_path_factory, hippocampus_root):
    """Folder with a trained model of two folds and nnU-Net's own probabilities."""
    home = tmp_path_factory.mktemp("nnunet")
    return train(home, make_raw(home / "source", hippocampus_root))


@pytest.fixture(scope="module")
def store(trained):
    """The outputs of both folds."""
    return OutputStore(import_model(trained))


def test_the_softmax_of_our_logits_is_what_nnunet_writes(trained, store):
    raw = trained / "raw" / DATASET
    theirs = ProbabilityFolders([trained / "imagesTs" / f"fold_{fold}" for fold in range(2)], raw / "labelsTs")
    assert list(store.case_ids) == theirs.case_ids
    for case in store:
        image = np.asarray(nibabel.load(raw / "imagesTs" / f"{case.case_id}_0000.nii.gz").dataobj).T
        seen = np.zeros(image.shape, dtype=bool)
        seen[:, :-2, 3:] = True
        written = theirs.load(case.case_id)
        np.testing.assert_array_equal(case.valid.numpy(), seen)
        np.testing.assert_array_equal(written.valid, seen)
        np.testing.assert_array_equal(case.target.numpy(), written.target)
        assert case.geometry == written.geometry
        logits = case.logits.double().numpy()[:, :, seen]
        probs = np.exp(logits - logits.max(1, keepdims=True))
        probs /= probs.sum(1, keepdims=True)
        np.testing.assert_allclose(probs, np.exp(written.scores[:, :, seen]), atol=1e-5)
        assert np.log(np.exp(logits).sum(1)).std() > 1e-3  # logits, and not log-probabilities
        assert not np.array_equal(logits[0], logits[1])


def test_members_are_the_folds_and_images_are_remembered(store):
    members = store.manifest.members
    assert [(member.name, member.checkpoint) for member in members] == [
        (f"fold_{fold}", f"fold_{fold}/checkpoint_final.pth") for fold in range(2)
    ]
    assert len({member.sha256 for member in members}) == 2
    assert (store.manifest.representation, store.manifest.class_names) == ("logits", tuple(LABELS))
    recorded = json.loads((store.path / "images.json").read_text())
    assert (len(recorded["pool"]), len(recorded["training"])) == (2, 5)


def test_the_sigmoids_of_our_logits_are_what_nnunet_writes_of_regions(tmp_path, hippocampus_root):
    regions = {"background": 0, "Whole": [1, 2], "Posterior": [2]}
    raw = make_raw(tmp_path / "source", hippocampus_root, labels=regions, regions_class_order=[1, 2])
    home = train(tmp_path, raw, folds=1)
    theirs = ProbabilityFolders([home / "imagesTs" / "fold_0"], raw / "labelsTs")
    views = write_views(import_model(home))
    assert list(views) == ["Whole", "Posterior"]
    for channel, folder in enumerate(views.values()):
        for case in OutputStore(folder):
            written = theirs.load(case.case_id)
            np.testing.assert_array_equal(case.valid.numpy(), written.valid)
            seen = case.valid
            logits = case.logits[0, 1][seen].double().numpy()
            probs = expit(written.scores[0, channel][seen.numpy()].astype(np.float64))
            np.testing.assert_allclose(expit(logits), probs, atol=1e-5)
            assert torch.equal(case.target, (torch.from_numpy(written.target).long() > channel).long())


def test_training_cases_are_predicted_by_the_network_that_held_them_out(trained, tmp_path):
    splits = trained / "preprocessed" / DATASET / "splits_final.json"
    options = ["--cross_validation", "true", "--splits_json", str(splits), "--folds", "[0, 1]"]
    found = OutputStore(import_part(trained, "Tr", tmp_path / "outputs", *options))
    held = [split["val"] for split in json.loads(splits.read_text())[:2]]
    assert [list(fold.cases) for fold in found.manifest.folds] == [sorted(cases) for cases in held]
    assert {fold.checkpoint for fold in found.manifest.folds} == {f"fold_{k}/checkpoint_final.pth" for k in range(2)}
    labels = trained / "raw" / DATASET / "labelsTr"
    theirs = [ProbabilityFolders([trained / "imagesTr" / f"fold_{fold}"], labels) for fold in range(2)]
    for fold, cases in enumerate(held):
        for case_id in cases:
            probs = found[case_id].logits.double().softmax(1)
            own, other = (np.exp(theirs[each].load(case_id).scores) for each in (fold, 1 - fold))
            np.testing.assert_allclose(probs, own, atol=1e-5)
            assert np.abs(own - other).max() > 1e-3
            np.testing.assert_array_equal(found[case_id].target, theirs[fold].load(case_id).target)
