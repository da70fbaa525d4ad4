"""Stores of regions and their views of two classes; one-channel scores."""

import json

import nibabel
import numpy as np
import pytest
import torch

from lightning_calib.outputs.imports.arrays import sigmoid_log_probs
from lightning_calib.outputs.imports.folder import ArrayFolders
from lightning_calib.outputs.imports.nnunet import read_dataset_facts
from lightning_calib.outputs.imports.nnunet_probs import ProbabilityFolders
from lightning_calib.outputs.manifest import Manifest, Member, StoreError
from lightning_calib.outputs.regions import Region, within
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.outputs.views import has_regions, write_views
from tests.stores import REGIONS, blocky_target, region_logits, write_region_store, write_store

AFFINE = np.diag([1.0, 2.0, 3.0, 1.0])


def test_a_view_is_a_store_of_two_classes(tmp_path):
    root = write_region_store(tmp_path / "outputs", cases=2)
    assert has_regions(root)
    manifest = Manifest.load(root / "manifest.json")
    assert manifest.format_version == 4
    assert json.loads((root / "manifest.json").read_text())["within"] == {
        "Whole Tumor": [],
        "core": ["Whole Tumor"],
        "enhancing": ["Whole Tumor", "core"],
    }
    generator = torch.Generator().manual_seed(1)
    labels = blocky_target((16, 20), 4, generator)
    logits = region_logits(labels, 2, generator)
    labels[0] = 255
    for number, (name, folder) in enumerate(write_views(root).items()):
        assert not has_regions(folder)
        store = OutputStore(folder)
        case = store["case-01"]
        assert store.manifest.class_names == ("outside", name)
        assert (store.manifest.background, store.manifest.ignore_index) == (0, 255)
        assert torch.equal(case.logits[:, 1], logits[:, number])
        assert not case.logits[:, 0].any()
        inside = sum(labels == label for label in REGIONS[name])
        assert torch.equal(case.target, torch.where(labels == 255, 255, inside))
        store.verify()


def test_pooled_regions_are_those_of_the_members(tmp_path):
    members = write_views(write_region_store(tmp_path / "a" / "outputs", cases=1))
    pooled = write_views(write_region_store(tmp_path / "b" / "outputs", cases=1, keep="pooled"))
    for name in members:
        one, other = (StoredCases(OutputStore(views[name])) for views in (members, pooled))
        for pooling in ("z", "p", "p0"):
            found = [each.pooled("case-00", pooling) for each in (one, other)]
            torch.testing.assert_close(found[0].log_softmax(0), found[1].log_softmax(0))
            assert torch.equal(found[0].argmax(0), found[1].argmax(0))


def test_a_store_of_regions_itself_is_refused_by_the_names_of_its_views(tmp_path):
    root = write_region_store(tmp_path / "outputs", cases=1)
    with pytest.raises(StoreError, match=r"regions/whole_tumor/outputs.*regions/enhancing/outputs"):
        OutputStore(root)


def test_an_outdated_view_is_refused_and_written_anew(tmp_path):
    root = write_region_store(tmp_path / "outputs", cases=1)
    folder = write_views(root)["core"]
    facts = json.loads((root / "manifest.json").read_text()) | {"dataset": "renamed"}
    (root / "manifest.json").write_text(json.dumps(facts))
    (root / "checksums.json").unlink(missing_ok=True)  # on purpose
    with pytest.raises(StoreError, match="has changed since"):
        OutputStore(folder)
    write_views(root)
    assert OutputStore(folder).manifest.dataset == "renamed: core"


def test_maps_of_other_labels_are_not_taken_again(tmp_path):
    root = write_region_store(tmp_path / "outputs", cases=1)
    folder = write_views(root)["core"]
    before = StoredCases(OutputStore(folder)).distance("case-00")
    facts = json.loads((root / "manifest.json").read_text())
    facts["regions"][1]["labels"] = [3]
    (root / "manifest.json").write_text(json.dumps(facts))
    (root / "checksums.json").unlink(missing_ok=True)  # on purpose
    write_views(root)
    after = StoredCases(OutputStore(folder)).distance("case-00")
    assert not torch.equal(before, after)


def test_a_store_in_the_place_of_a_view_is_left_alone(tmp_path):
    other = write_store(tmp_path / "regions" / "core" / "outputs", cases=1)
    with pytest.raises(StoreError, match=r"regions/core/outputs is no view of a region, but a store"):
        write_region_store(tmp_path / "outputs", cases=1)
    other.verify()


def test_stores_of_classes_are_written_as_before(tmp_path):
    store = write_store(tmp_path / "outputs", cases=1)
    facts = json.loads((store.path / "manifest.json").read_text())
    assert facts["format_version"] == 3
    assert not {"regions", "within", "view"} & set(facts)


@pytest.mark.parametrize(
    ("regions", "told"),
    [({"a": [1, 9]}, r"labels \[1, 9\]; the data set has 0 to 3"), ({"a b": [1], "a_b": [2]}, "a name of its own")],
)
def test_regions_that_cannot_be_are_refused(tmp_path, regions, told):
    with pytest.raises(StoreError, match=told):
        Manifest("toy", ("0", "1", "2", "3"), None, None, 2, (Member("0"),), regions=Region.all_of(regions))


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def write_nnunet(root, labels, order, logits, crop=True):
    """Sigmoid probabilities as nnU-Net writes them, in both folds; returns the probabilities."""
    facts = {"channel_names": {"0": "MRI"}, "labels": labels, "file_ending": ".nii.gz", "regions_class_order": order}
    probs = sigmoid(logits).astype(np.float32)  # (M, R, D, H, W)
    if crop:
        probs[:, :, 0] = 0
    for fold, scores in enumerate(probs):
        folder = root / f"fold_{fold}"
        folder.mkdir(parents=True)
        (folder / "dataset.json").write_text(json.dumps(facts))
        np.savez_compressed(folder / "a.npz", probabilities=scores)
        painted = np.zeros(scores.shape[1:], dtype=np.uint8)
        for region, label in zip(scores, order, strict=True):
            painted[region > 0.5] = label
        nibabel.save(nibabel.Nifti1Image(painted.T, AFFINE), folder / "a.nii.gz")
    return probs


def test_nnunet_regions(tmp_path):
    rng = np.random.default_rng(0)
    labels = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3, "ignore": 4}
    probs = write_nnunet(tmp_path, labels, [1, 2, 3], 3 * rng.normal(size=(2, 3, 5, 6, 7)))
    target = rng.integers(0, 5, (5, 6, 7)).astype(np.uint8)
    (tmp_path / "labels").mkdir()
    nibabel.save(nibabel.Nifti1Image(target.T, AFFINE), tmp_path / "labels" / "a.nii.gz")
    facts = read_dataset_facts(tmp_path / "fold_0" / "dataset.json")
    assert facts.class_names == ["background", "label 1", "label 2", "enhancing"]
    assert (facts.ignore_index, [region.labels for region in facts.regions]) == (4, [(1, 2, 3), (2, 3), (3,)])
    assert within(facts.regions)["enhancing"] == ["whole", "core"]
    case = ProbabilityFolders([tmp_path / "fold_0", tmp_path / "fold_1"], tmp_path / "labels").load("a")
    assert not case.valid[0].any()
    assert case.valid[1:].all()
    np.testing.assert_allclose(sigmoid(case.scores)[:, :, 1:], probs[:, :, 1:], rtol=1e-5)
    np.testing.assert_array_equal(case.scores[:, :, 1:] > 0, probs[:, :, 1:] > 0.5)


def test_one_region_is_one_channel(tmp_path):
    rng = np.random.default_rng(0)
    write_nnunet(tmp_path, {"background": 0, "lesion": [1, 2]}, [1], 3 * rng.normal(size=(1, 1, 4, 5, 6)), crop=False)
    (tmp_path / "labels").mkdir()
    nibabel.save(nibabel.Nifti1Image(np.zeros((6, 5, 4), np.uint8), AFFINE), tmp_path / "labels" / "a.nii.gz")
    source = ProbabilityFolders([tmp_path / "fold_0"], tmp_path / "labels")
    case = source.load("a")
    assert case.scores.shape == (1, 1, 4, 5, 6)
    assert case.valid is None
    assert source.facts.channels == ["lesion"]


@pytest.mark.parametrize(
    ("order", "labels", "told"),
    [
        (None, {"background": 0, "whole": [1, 2]}, "regions_class_order = None"),
        ([1], {"background": 0, "whole": [1, 3]}, r"\[0, 1, 3\]; they must count up"),
    ],
)
def test_what_a_region_based_model_must_say(tmp_path, order, labels, told):
    facts = {"labels": labels, "file_ending": ".nii.gz", "regions_class_order": order}
    (tmp_path / "dataset.json").write_text(json.dumps(facts))
    with pytest.raises(StoreError, match=told):
        read_dataset_facts(tmp_path / "dataset.json")


@pytest.mark.parametrize("axis", [True, False])
@pytest.mark.parametrize("representation", ["logits", "probs"])
def test_one_channel_is_the_second_of_two_classes(tmp_path, axis, representation):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (12, 10)).astype(np.float32)
    stored = logits if representation == "logits" else sigmoid(logits).astype(np.float32)
    for folder, content in (("scores", stored[None] if axis else stored), ("masks", (logits > 1).astype(np.uint8))):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", content)
    scores = ArrayFolders([tmp_path / "scores"], representation, tmp_path / "masks").load("a").scores
    assert scores.shape == (1, 2, 12, 10)
    np.testing.assert_allclose(scores[0, 1] - scores[0, 0], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scores[0].argmax(0), logits > 0)
    regions = ArrayFolders([tmp_path / "scores"], representation, tmp_path / "masks", regions={"it": [1]})
    np.testing.assert_allclose(regions.load("a").scores, logits[None, None], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sigmoid_outputs_keep_decisions_and_saturate_where_rounding_did(dtype):
    near = np.nextafter(np.array(0.5, dtype), np.array([0, 1], dtype))
    probs = np.array([*near, 0.5, 0.0, 1.0, 0.1, 0.9], dtype=dtype)
    outside, inside, lost = sigmoid_log_probs(probs, "a")
    np.testing.assert_array_equal((inside - outside).astype(np.float32) > 0, probs > 0.5)
    assert lost == 2
    np.testing.assert_allclose(sigmoid(inside.astype(float) - outside)[-2:], [0.1, 0.9], rtol=2e-3)
    with pytest.raises(StoreError, match="no probabilities"):
        sigmoid_log_probs(np.array([2.0], dtype=dtype), "a")
