"""nnU-Net's results: geometry, order of axes, cropping and lost probabilities."""

import json
import os
import pickle
import shutil

import nibabel
import numpy as np
import pytest

from lightning_calib.datasets.orientation import Orientation
from lightning_calib.outputs.imports.nnunet import read_dataset_facts
from lightning_calib.outputs.imports.nnunet_model import FoldPredictor
from lightning_calib.outputs.imports.nnunet_probs import ProbabilityFolders
from lightning_calib.outputs.imports.orientation import find_orientation
from lightning_calib.outputs.manifest import StoreError

AFFINE = np.array([[1.5, 0, 0, 3.0], [0, 2.0, 0, -7.0], [0, 0, 4.0, 1.0], [0, 0, 0, 1.0]])
LABELS = {"background": 0, "front": 1, "back": 2}


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def write_dataset_json(folder, labels=LABELS, **facts):
    content = {"channel_names": {"0": "MRI"}, "labels": labels, "file_ending": ".nii.gz", "name": "Tiny"} | facts
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder / "dataset.json"


def save_volume(path, array, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, affine), path)


def write_predictions(root, shape=(6, 8, 7), cases=2, folds=2, turn=None, crop=True, seed=0):
    """Folders as nnU-Net writes them; ``turn`` reorders axes as a reader that reorients does. Returns probabilities."""
    rng = np.random.default_rng(seed)
    written = {}
    for number in range(cases):
        name = f"case_{number}"
        for fold in range(folds):
            logits = 3 * rng.normal(size=(3, *shape))
            probs = np.exp(logits) / np.exp(logits).sum(0)
            if crop:
                outside = np.ones(shape, dtype=bool)
                outside[1:5, 2:, :6] = False
                probs[:, outside] = np.array([1.0, 0.0, 0.0])[:, None]
            probs = probs.astype(np.float32)
            written[name, fold] = probs
            folder = root / f"fold_{fold}"
            write_dataset_json(folder)
            np.savez_compressed(folder / f"{name}.npz", probabilities=probs if turn is None else turn(probs))
            (folder / f"{name}.pkl").write_bytes(pickle.dumps(Bomb(root / "exploded")))
            save_volume(folder / f"{name}.nii.gz", probs.argmax(0).T.astype(np.uint8))
        save_volume(root / "labels" / f"{name}.nii.gz", rng.integers(0, 3, shape).T.astype(np.uint8))
    return written


def open_folders(root, **options):
    return ProbabilityFolders([root / "fold_0", root / "fold_1"], root / "labels", **options)


def test_probabilities_geometry_and_cropping(tmp_path):
    written = write_predictions(tmp_path)
    source = open_folders(tmp_path)
    assert source.case_ids == ["case_0", "case_1"]
    assert [member.name for member in source.members()] == ["fold_0", "fold_1"]
    assert source.spatial_dims == 3
    for case_id in source.case_ids:
        case = source.load(case_id)
        expected = np.zeros((6, 8, 7), dtype=bool)
        expected[1:5, 2:, :6] = True
        np.testing.assert_array_equal(case.valid, expected)
        for fold in range(2):
            probs = written[case_id, fold]
            np.testing.assert_allclose(np.exp(case.scores[fold])[:, expected], probs[:, expected], rtol=1e-5)
        assert case.zeros == 0  # the fill's zeros are no loss
        np.testing.assert_allclose(case.geometry["affine"], AFFINE)
        assert case.geometry["spacing"] == [4.0, 2.0, 1.5]
    assert not (tmp_path / "exploded").exists()


def test_lost_probabilities_are_counted_within_the_crop(tmp_path):
    write_predictions(tmp_path, cases=1)
    path = tmp_path / "fold_1" / "case_0.npz"
    probs = np.load(path)["probabilities"]
    winner = probs[:, 2, 3, 3].argmax()
    probs[:, 2, 3, 3] = np.eye(3, dtype=np.float32)[winner]
    np.savez_compressed(path, probabilities=probs)
    case = open_folders(tmp_path).load("case_0")
    assert case.zeros == 2
    assert case.scores[1, (winner + 1) % 3, 2, 3, 3] == np.log(np.finfo(np.float32).tiny).astype(np.float32)


def test_nothing_is_cropped_where_nothing_was_filled(tmp_path):
    write_predictions(tmp_path, cases=1, crop=False)
    assert open_folders(tmp_path).load("case_0").valid is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("flips", [(False, False, False), (True, False, True)])
@pytest.mark.parametrize("shape", [(6, 8, 7), (7, 7, 7)])
def test_the_order_of_axes_is_that_of_the_segmentation(tmp_path, order, flips, shape):
    turn = Orientation(order, flips).apply
    written = write_predictions(tmp_path, shape=shape, cases=1, turn=turn)
    case = open_folders(tmp_path).load("case_0")
    inside = written["case_0", 0][1] > 0
    np.testing.assert_allclose(np.exp(case.scores[0])[:, inside], written["case_0", 0][:, inside], rtol=1e-5)


def test_pictures_are_held_as_one_slice(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), (9, 11)).transpose(2, 0, 1).astype(np.float32)
    write_dataset_json(tmp_path / "fold_0", file_ending=".png")
    (tmp_path / "labels").mkdir()
    np.savez(tmp_path / "fold_0" / "a.npz", probabilities=probs[:, None])
    for folder in ("fold_0", "labels"):
        Image.fromarray(probs.argmax(0).astype(np.uint8)).save(tmp_path / folder / "a.png")
    source = ProbabilityFolders([tmp_path / "fold_0"], tmp_path / "labels")
    case = source.load("a")
    assert (source.spatial_dims, case.scores.shape, case.geometry) == (2, (1, 3, 9, 11), None)
    np.testing.assert_allclose(np.exp(case.scores[0]), probs, rtol=1e-5)


def test_what_does_not_fit_is_refused(tmp_path):
    write_predictions(tmp_path)
    changed = tmp_path / "fold_1" / "case_1.nii.gz"
    segmentation = np.asarray(nibabel.load(changed).dataobj)
    save_volume(changed, (2 - segmentation).astype(np.uint8))
    with pytest.raises(StoreError, match=r"case_1\.npz: the segmentation beside it .* not the argmax"):
        open_folders(tmp_path).load("case_1")
    save_volume(tmp_path / "labels" / "case_0.nii.gz", np.zeros((7, 8, 6), dtype=np.uint8), AFFINE + np.eye(4))
    with pytest.raises(StoreError, match="different places"):
        open_folders(tmp_path).load("case_0")
    changed.unlink()
    with pytest.raises(StoreError, match=r"case_1\.nii\.gz and 0 more are missing"):
        open_folders(tmp_path)
    shutil.rmtree(tmp_path / "labels")
    with pytest.raises(StoreError, match="no such folder"):
        ProbabilityFolders([tmp_path / "fold_0"], tmp_path / "labels")


def test_facts_on_the_data_set(tmp_path):
    facts = read_dataset_facts(write_dataset_json(tmp_path, {"background": 0, "b": [2], "a": 1, "ignore": 3}))
    assert (facts.name, facts.class_names, facts.ignore_index) == ("Tiny", ["background", "a", "b"], 3)
    with pytest.raises(StoreError, match="count up from 0"):
        read_dataset_facts(write_dataset_json(tmp_path, {"background": 0, "a": 2}))
    with pytest.raises(StoreError, match="--dataset_json"):
        read_dataset_facts(tmp_path / "absent.json")


def test_labels_that_agree_nowhere(tmp_path):
    ones = np.ones((3, 4), dtype=int)
    with pytest.raises(StoreError, match=r"a\.npz.*at best 0\.0%"):
        find_orientation(ones, 0 * ones, "a.npz")
    assert find_orientation(ones, ones, "a.npz") == Orientation((0, 1), (False, False))


def test_a_model_folder_is_loaded_only_when_trusted(tmp_path):
    model = tmp_path / "model"
    write_dataset_json(model)
    with pytest.raises(StoreError, match=r"plans\.json"):
        FoldPredictor(model, tmp_path, tmp_path)
    (model / "plans.json").write_text("{}")
    with pytest.raises(StoreError, match=r"no fold has checkpoint_final\.pth"):
        FoldPredictor(model, tmp_path, tmp_path)
    (model / "fold_0").mkdir()
    (model / "fold_0" / "checkpoint_final.pth").write_bytes(b"")
    with pytest.raises(StoreError, match="folds 3 have"):
        FoldPredictor(model, tmp_path, tmp_path, folds=[3])
    with pytest.raises(StoreError, match="--trust_model_folder true"):
        FoldPredictor(model, tmp_path, tmp_path)
    with pytest.raises(StoreError, match="no images named <case>_0000"):
        FoldPredictor(model, tmp_path, tmp_path, trusted=True)
