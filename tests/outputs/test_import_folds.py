"""import nnunet --cross_validation: each case from the fold that held it out, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch

from lightning_calib.cli.calibrate import main
from lightning_calib.outputs.doctor import examine
from lightning_calib.outputs.folds import NOTE, Fold
from lightning_calib.outputs.imports import nnunet_folds
from lightning_calib.outputs.imports.loop import Imported
from lightning_calib.outputs.imports.nnunet_folds import OutOfFold, find_splits, held_out
from lightning_calib.outputs.imports.nnunet_model import FoldPredictor
from lightning_calib.outputs.manifest import MANIFEST, Manifest, Member, StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from tests.outputs.test_import_nnunet import save_volume, write_dataset_json

SHAPE = (4, 5, 6)
HELD = {"0": ("a", "d"), "1": ("b",), "2": ("c", "e")}


def write_splits(path, held):
    cases = sorted(case for own in held.values() for case in own)
    splits = [{"train": [case for case in cases if case not in own], "val": list(own)} for own in held.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(splits))
    return path


def write_model(root, held=HELD):
    """A results folder as ``nnUNetv2_train --npz`` leaves it; returns it and the probabilities of each case."""
    rng = np.random.default_rng(0)
    model, written = root / "results" / "Dataset001_Tiny" / "trainer", {}
    write_dataset_json(model)
    for fold, cases in held.items():
        for case in cases:
            written[case] = rng.dirichlet(np.ones(3), SHAPE).transpose(3, 0, 1, 2).astype(np.float32)
            folder = model / f"fold_{fold}" / "validation"
            folder.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(folder / f"{case}.npz", probabilities=written[case])
            save_volume(folder / f"{case}.nii.gz", written[case].argmax(0).T.astype(np.uint8))
            save_volume(root / "labelsTr" / f"{case}.nii.gz", rng.integers(0, 3, SHAPE).T.astype(np.uint8))
    write_splits(root / "preprocessed" / "Dataset001_Tiny" / "splits_final.json", held)
    return model, written


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A results folder, whose splits lie where nnU-Net has them."""
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    return (tmp_path, *write_model(tmp_path))


def line(root, model, *options):
    head = ["import", "nnunet", "--cross_validation", "true", "--model", str(model), "--outputs", str(root / "outputs")]
    return [*head, "--targets", str(root / "labelsTr"), *map(str, options)]


def test_each_case_comes_from_the_fold_that_held_it_out(trained, capsys):
    root, model, written = trained
    assert main(line(root, model)) == 0
    told = capsys.readouterr().out
    assert "5 cases, out of 3 folds, 3 classes" in told
    assert "warning: out_of_fold" in told
    store = OutputStore(root / "outputs")
    assert (store.manifest.representation, store.manifest.num_members) == ("log_probs", 1)
    assert store.manifest.folds == tuple(Fold(f"fold_{fold}", cases) for fold, cases in HELD.items())
    assert store.case_ids == ("a", "b", "c", "d", "e")
    for case in store:
        np.testing.assert_allclose(case.logits[0].exp().numpy(), written[case.case_id], rtol=1e-5)
    assert main(line(root, model)) == 0  # goes on: nothing is to be done


def test_some_folds_are_enough_where_they_are_named(trained, capsys):
    root, model, _ = trained
    shutil.rmtree(model / "fold_1")
    assert main(line(root, model)) == 2
    assert "has no fold_1: train the missing folds, or take the cases of the others with --folds '[0, 2]'" in (
        capsys.readouterr().err
    )
    assert main(line(root, model, "--folds", "[0, 2]")) == 0
    assert OutputStore(root / "outputs").case_ids == ("a", "c", "d", "e")


class Predicted(FoldPredictor):
    """A predictor whose logits are the number of the fold."""

    def load(self, case_id, folds=None):
        logits = np.stack([np.full((3, *SHAPE), float(fold)) for fold in folds or self.folds])
        return Imported(logits.astype(np.float32), self.target(case_id).array)


def test_logits_are_predicted_by_each_cases_own_fold(trained, monkeypatch):
    root, model, _ = trained
    monkeypatch.setattr(nnunet_folds, "FoldPredictor", Predicted)
    (model / "plans.json").write_text("{}")
    (root / "imagesTr").mkdir()
    for fold in HELD:
        (model / f"fold_{fold}" / "checkpoint_final.pth").write_bytes(fold.encode())
    options = {"targets": root / "labelsTr", "images": root / "imagesTr", "trusted": True}
    for case in "abcd":
        (root / "imagesTr" / f"{case}_0000.nii.gz").touch()
    with pytest.raises(StoreError, match="imagesTr has no image of e"):
        OutOfFold(model, **options)
    (root / "imagesTr" / "e_0000.nii.gz").touch()
    source = OutOfFold(model, **options)
    assert source.representation == "logits"
    found = {case: source.load(case).scores for case in source.case_ids}
    assert {scores.shape for scores in found.values()} == {(1, 3, *SHAPE)}
    assert {case: scores.mean() for case, scores in found.items()} == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 2}
    assert [fold.checkpoint for fold in source.fold_records()] == [f"fold_{k}/checkpoint_final.pth" for k in HELD]
    assert len({fold.sha256 for fold in source.fold_records()}) == 3
    with pytest.raises(StoreError, match="--trust_model_folder"):
        OutOfFold(model, root / "labelsTr", root / "imagesTr")


def test_the_weights_of_the_asked_folds_predict():
    class Weights(FoldPredictor):
        folds, _weights = ("0", "1", "2"), ("w0", "w1", "w2")

        def __init__(self):
            pass

    assert Weights().weights_of(["2", "0"]) == ["w2", "w0"]
    assert Weights().weights_of(None) == ["w0", "w1", "w2"]


def test_splits_that_are_no_cross_validation_are_refused(tmp_path):
    path = write_splits(tmp_path / "splits_final.json", HELD)
    assert held_out(path) == HELD
    assert held_out(path, [2, 1]) == {"2": ("c", "e"), "1": ("b",)}
    with pytest.raises(StoreError, match=r"has the folds 0, 1, 2, but not all, 7"):
        held_out(path, [0, "all", 7])
    twice = {**HELD, "1": ("b", "d")}
    with pytest.raises(StoreError, match="case d is in the validation of the folds 0 and 1"):
        held_out(write_splits(path, twice))
    assert held_out(path, [1, 2]) == {"1": ("b", "d"), "2": ("c", "e")}
    path.write_text(json.dumps([{"train": ["a", "b"], "val": ["b"]}]))
    with pytest.raises(StoreError, match="fold 0 was trained on b and validated on the same"):
        held_out(path)
    for text in ("{", "[1]", '[{"train": []}]'):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"is not the splits_final\.json of nnU-Net v2"):
            held_out(path)


def test_where_splits_are_looked_for(trained, monkeypatch):
    root, model, _ = trained
    kept = root / "preprocessed" / "Dataset001_Tiny" / "splits_final.json"
    assert find_splits(model) == kept
    shutil.copy(kept, model / "splits_final.json")
    assert find_splits(model) == model / "splits_final.json"
    (model / "splits_final.json").unlink()
    monkeypatch.delenv("nnUNet_preprocessed")
    with pytest.raises(StoreError, match=r"trainer/splits_final\.json does not exist.*--splits_json"):
        find_splits(model)
    assert OutOfFold(model, root / "labelsTr", splits_json=kept).case_ids == ["a", "b", "c", "d", "e"]


def test_folders_that_do_not_fit_the_splits_are_refused(trained, capsys):
    root, model, _ = trained
    moved = model / "fold_1" / "validation" / "b.npz"
    other = model / "fold_0" / "validation" / "b.npz"
    shutil.copy(moved, other)
    assert main(line(root, model)) == 2
    assert "holds b, which fold 0 did not hold out" in capsys.readouterr().err
    other.unlink()
    kept = model / "fold_0" / "validation" / "d.npz"
    kept.rename(root / "d.npz")
    assert main(line(root, model)) == 2
    assert "has no probabilities of d" in capsys.readouterr().err
    (root / "d.npz").rename(kept)
    moved.unlink()
    assert main(line(root, model)) == 2
    assert "`nnUNetv2_train ... 1 --val --npz`" in capsys.readouterr().err
    assert main(line(root, model, "--training_images", root)) == 2
    assert "no --training_images" in capsys.readouterr().err


def write_folded(path, folds, members=1, cases="ab"):
    writer = OutputWriter(path, "toy", ["x", "y"], 2, [Member(str(n)) for n in range(members)], folds=folds)
    rng = np.random.default_rng(0)
    for case in cases:
        logits = torch.from_numpy(rng.normal(size=(members, 2, 6, 6))).float()
        writer.write(case, logits, logits[0].argmax(0))
    writer.finish()
    return OutputStore(path)


def test_the_manifest_knows_its_folds(tmp_path):
    folds = (Fold("0", ("a",), "members/0/last.ckpt", "12"), Fold("1", ("b",)))
    store = write_folded(tmp_path / "folded", folds)
    assert store.manifest.out_of_fold
    assert store.manifest.folds == folds
    assert store.manifest.format_version == 5  # earlier releases would take it for a single network's
    (finding,) = [finding for finding in examine(store) if finding.name == "out_of_fold"]
    assert finding.severity == "warning"
    assert NOTE in finding.remedy
    plain = write_folded(tmp_path / "plain", ())
    assert not plain.manifest.out_of_fold
    assert "folds" not in json.loads((plain.path / MANIFEST).read_text())
    assert "out_of_fold" not in {finding.name for finding in examine(plain)}
    with pytest.raises(StoreError, match=r"holds outputs of another run \(folds"):
        OutputWriter(store.path, "toy", ["x", "y"], 2, [Member("0")], folds=folds[:1])


def test_folds_that_contradict_are_refused(tmp_path):
    with pytest.raises(StoreError, match="has one member"):
        write_folded(tmp_path / "two", (Fold("0", ("a", "b")),), members=2)
    with pytest.raises(StoreError, match="case b is in the folds 0 and 1"):
        write_folded(tmp_path / "twice", (Fold("0", ("a", "b")), Fold("1", ("b",))))
    with pytest.raises(StoreError, match=r"1 case\(s\) are in no fold: b"):
        write_folded(tmp_path / "lost", (Fold("0", ("a",)),))
    store = write_folded(tmp_path / "sound", (Fold("0", ("a", "b")),))
    facts = json.loads((store.path / MANIFEST).read_text())
    facts["folds"] = [{"name": "0"}]
    (store.path / MANIFEST).write_text(json.dumps(facts))
    (store.path / "checksums.json").unlink(missing_ok=True)  # on purpose
    with pytest.raises(StoreError, match="is not the manifest of an output store"):
        Manifest.load(store.path / MANIFEST)
