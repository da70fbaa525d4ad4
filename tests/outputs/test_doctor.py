"""Each fault of an output store is found where it is, and nowhere else."""

import gzip
import json
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.datasets.content import image_hash
from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.kit.files import write_json
from lightning_calib.outputs.doctor import examine, has_errors, record_images
from lightning_calib.outputs.doctor.images import IMAGES, hash_folder, remember_images
from lightning_calib.outputs.doctor.sample import take_sample
from lightning_calib.outputs.manifest import Member, StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from tests.stores import blocky_target, member_logits, with_changed, write_store


def names(findings):
    return [finding.name for finding in findings]


def change(store, **edits):
    """The same store after functions of ``(logits, target)`` were applied to arrays, as another program may do."""

    def apply(case_id, arrays):
        arrays |= {name: edit(**{k: arrays[k].clone() for k in ("logits", "target")}) for name, edit in edits.items()}

    return with_changed(store, apply)


def rewrite(store, path, edit, **facts):
    """A new store with the arrays of another after ``edit(logits, target) -> (logits, target, valid)``."""
    old = store.manifest
    options = {"background": old.background, "ignore_index": old.ignore_index, "representation": old.representation}
    options |= {"dataset": old.dataset, "class_names": old.class_names, "members": old.members} | facts
    writer = OutputWriter(path, spatial_dims=old.spatial_dims, **options)
    for case in store:
        logits, target, valid = edit(case.logits, case.target)
        writer.write(case.case_id, logits, target, valid)
    writer.finish()
    return OutputStore(path)


def with_logits(edit):
    return lambda logits, target: (edit(logits), target, None)


@pytest.fixture
def healthy(tmp_path):
    return write_store(tmp_path / "healthy", cases=6, shape=(24, 20), members=3)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((24, 20), {}),
        ((20, 20), {"members": 4}),  # members, classes and sides of equal length: every swap is possible
        ((6, 8, 6), {"valid": True, "background": 0, "ignore_index": None}),
        ((24, 20), {"keep": "pooled"}),
        ((24, 20), {"members": 1, "num_classes": 2}),
        ((4, 4), {"num_classes": 4, "members": 4}),
    ],
)
@pytest.mark.parametrize("voxels", [None, 64])
def test_a_healthy_store_has_no_findings(tmp_path, shape, options, voxels):
    store = write_store(tmp_path / "store", cases=8, shape=shape, **options)
    assert examine(store, voxels=voxels) == []


@settings(max_examples=20)
@given(seed=st.integers(0, 2**16), scale=st.floats(0.01, 30), offset=st.floats(-100, 100), classes=st.integers(2, 6))
def test_no_scale_or_offset_of_ordinary_logits_looks_like_probabilities(tmp_path_factory, seed, scale, offset, classes):
    generator = torch.Generator().manual_seed(seed)
    target = blocky_target((16, 16), classes, generator)
    writer = OutputWriter(tmp_path_factory.mktemp("s"), "toy", [str(c) for c in range(classes)], 2, [Member("0")])
    writer.write("a", scale * member_logits(target, classes, 1, generator) + offset, target)
    writer.finish()
    assert not {"softmax_as_logits", "double_softmax"} & set(names(examine(writer.path)))


def test_softmax_saved_as_logits(healthy, tmp_path):
    store = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z.softmax(1)))
    (finding,) = examine(store)
    assert (finding.name, finding.severity, len(finding.cases)) == ("softmax_as_logits", "error", 6)
    assert "480 voxels" in finding.evidence
    assert "--representation probs" in finding.remedy


def test_softmax_saved_as_log_probabilities(healthy, tmp_path):
    store = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z.softmax(1)), representation="log_probs")
    assert names(examine(store)) == ["softmax_as_logits"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("representation", "last"), [("log_probs", "log_softmax"), ("logits", "logit_shift")])
def test_double_softmax(healthy, tmp_path, dtype, representation, last):
    def twice(z):
        probs = (3 * z).softmax(1)
        return probs.log_softmax(1) if last == "log_softmax" else probs + 7.0

    store = rewrite(healthy, tmp_path / "bad", with_logits(twice), representation=representation, dtype=dtype)
    (finding,) = examine(store)
    assert (finding.name, finding.severity) == ("double_softmax", "error")
    assert "no confidence exceeds 0.475" in finding.evidence  # e / (e + 3)


def test_log_probabilities_are_no_double_softmax(healthy, tmp_path):
    store = rewrite(healthy, tmp_path / "good", with_logits(lambda z: z.log_softmax(1)), representation="log_probs")
    assert examine(store) == []


def test_logits_declared_as_log_probabilities(healthy, tmp_path):
    store = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z), representation="log_probs")
    assert names(examine(store)) == ["not_normalised"]


def one_hot_fill(logits):
    logits = logits.clone()
    logits[..., :8, :] = 0.0
    logits[:, 0, :8] = 1.0
    return logits


def test_constant_regions_are_found_unless_they_are_marked(healthy, tmp_path):
    store = rewrite(healthy, tmp_path / "bad", with_logits(one_hot_fill))
    (finding,) = examine(store)
    assert (finding.name, finding.severity) == ("constant_region", "warning")
    assert "33% of neighbouring voxels" in finding.evidence
    assert "(1, 0, 0, 0), a confidence of 0.475" in finding.evidence
    valid = torch.ones(24, 20, dtype=torch.bool)
    valid[:8] = False
    marked = rewrite(healthy, tmp_path / "good", lambda z, y: (one_hot_fill(z), y, valid))
    assert examine(marked) == []


def test_a_missing_class_axis(healthy, tmp_path):
    store = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z[:, :1].expand_as(z)))
    (finding,) = [each for each in examine(store) if each.name != "void_class"]
    assert (finding.name, finding.severity) == ("flat_classes", "error")


@pytest.mark.parametrize(
    ("shape", "members", "axes", "told"),
    [
        ((20, 20), 2, (2, 3), "spatial axis 0 and spatial axis 1 swapped"),
        ((4, 24), 2, (1, 2), "class axis and spatial axis 0 swapped"),
        ((24, 20), 4, (0, 1), "member axis and class axis swapped"),
        ((4, 4, 24), 4, (2, 4), None),
    ],
)
def test_swapped_axes(tmp_path, shape, members, axes, told):
    store = write_store(tmp_path / "good", cases=8, shape=shape, members=members)
    if told is None:
        assert examine(store) == []
        return
    bad = rewrite(store, tmp_path / "bad", with_logits(lambda z: z.transpose(*axes)))
    (finding,) = [each for each in examine(bad) if each.name != "void_class"]
    assert (finding.name, finding.severity) == ("swapped_axes", "error")
    assert told in finding.evidence


def test_members_and_classes_are_not_confused_in_stores_of_our_own(tmp_path):
    """Two networks that have learnt little of two classes look like that by chance."""
    store = write_store(tmp_path / "good", cases=8, shape=(24, 20), members=4)
    bad = rewrite(store, tmp_path / "bad", with_logits(lambda z: z.transpose(0, 1)))
    assert "swapped_axes" in names(examine(bad))
    facts = Preprocessing("image", 3, {"name": "pictures", "options": {}})
    replace(bad.manifest, preprocessing=facts).save(bad.path / "manifest.json")
    assert "swapped_axes" not in names(examine(OutputStore(bad.path)))


def test_an_easy_square_image_among_others_is_no_swapped_axis(tmp_path):
    """Networks that know the background only: all is right in the square image, a third in the others."""
    writer = OutputWriter(tmp_path / "weak", "toy", ["none", "a", "b"], 2, [Member("0"), Member("1")], background=0)
    for number, shape in enumerate([(24, 20)] * 5 + [(20, 20)]):
        target = torch.zeros(shape, dtype=torch.long) if number == 5 else torch.randint(0, 3, shape)
        logits = torch.randn(2, 3, *shape)
        logits[:, 0] += 8
        writer.write(f"case{number}", logits, target)
    writer.finish()
    assert "swapped_axes" not in names(examine(OutputStore(tmp_path / "weak")))


def test_reversed_axes(healthy, tmp_path):
    bad = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z.flip(2)))
    (finding,) = examine(bad)
    assert finding.name == "swapped_axes"
    assert "spatial axis 0 reversed" in finding.evidence


def test_classes_in_another_order(healthy, tmp_path):
    bad = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z.flip(1)))
    (finding,) = examine(bad)
    assert (finding.name, finding.severity) == ("class_order", "error")
    assert "class 3 is predicted as class 0" in finding.evidence


@pytest.mark.parametrize("last", ["Void", "sky"])
def test_void_counted_as_a_class(tmp_path, last):
    store = write_store(tmp_path / "good", cases=6, shape=(24, 20))
    names_ = ["road", "car", "tree", "house", last]

    def count_void(logits, target):
        return torch.cat([logits, logits.amin(1, keepdim=True) - 20], 1), target.where(target != 255, 4), None

    bad = rewrite(store, tmp_path / "bad", count_void, class_names=names_, ignore_index=None)
    (finding,) = examine(bad)
    assert (finding.name, finding.severity) == ("void_class", "error" if last == "Void" else "warning")
    assert f"class 4 ({last}) has 1" in finding.evidence
    assert "0 of 2,880 predictions" in finding.evidence


def test_a_class_that_is_never_predicted_is_named(tmp_path):
    store = write_store(tmp_path / "all", cases=6, shape=(24, 20))
    silent = with_logits(lambda logits: logits.clone().index_fill_(1, torch.tensor(2), -3.0))
    found = [f for f in examine(rewrite(store, tmp_path / "silent", silent)) if f.name == "never_predicted"]
    assert [f.severity for f in found] == ["warning"]
    targets = torch.stack([case.target for case in store])
    assert f"class 2: {int((targets == 2).sum()):,} of {int((targets != 255).sum()):,} voxels" in found[0].evidence
    assert "class 1" not in found[0].evidence


def test_a_case_without_labels_and_a_store_of_one_class_are_told(tmp_path):
    store = write_store(tmp_path / "all", cases=4, shape=(24, 20))
    first = iter([True])
    edit = lambda logits, target: (logits, torch.full_like(target, 255) if next(first, False) else target, None)  # noqa: E731
    (found,) = examine(rewrite(store, tmp_path / "ignored", edit))
    assert (found.name, found.severity, found.cases) == ("all_ignored", "warning", ("case-00",))
    edit = lambda logits, target: (logits, torch.full_like(target, 1), None)  # noqa: E731
    found = [f for f in examine(rewrite(store, tmp_path / "one", edit)) if f.name == "one_class"]
    assert "labels looked at are class 1" in found[0].evidence


def test_labels_out_of_range(healthy):
    def relabel(logits, target):
        target[3, 5:8] = 19
        target[0, 0] = -1
        return target

    (finding,) = examine(change(healthy, target=relabel), voxels=64)  # labels are looked at more closely
    assert (finding.name, finding.severity, len(finding.cases)) == ("labels_out_of_range", "error", 6)
    assert "-1 (1 voxels), 19 (3 voxels)" in finding.evidence
    assert "ignore_index 255" in finding.evidence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite(healthy, value):
    def spoil(logits, target):
        logits[1, 2, 4] = value
        return logits

    (finding,) = examine(change(healthy, logits=spoil))
    assert (finding.name, finding.severity) == ("not_finite", "error")
    assert ("20 NaN and 0 inf" if value != value else "0 NaN and 20 inf") in finding.evidence


@pytest.mark.parametrize("value", [float("inf"), 65504.0, -65504.0])
def test_float16_overflow(healthy, tmp_path, value):
    store = rewrite(healthy, tmp_path / "half", with_logits(lambda z: z), dtype="float16")
    assert examine(store) == []

    def spoil(logits, target):
        logits[0, 0, 0, :7] = value
        return logits

    (finding,) = examine(change(store, logits=spoil))
    assert (finding.name, finding.severity) == ("float16_overflow", "error")
    assert "7 scores" in finding.evidence


def test_identical_members(healthy, tmp_path):
    bad = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z[[0, 1, 1]]))
    (finding,) = examine(bad)
    assert (finding.name, finding.severity) == ("identical_members", "error")
    assert "1 pair(s)" in finding.evidence
    assert "1 = 2" in finding.evidence


def test_members_with_the_same_checkpoint(healthy, tmp_path):
    members = [Member("a", "a.ckpt", "77"), Member("b", "b.ckpt", "78"), Member("c", "c.ckpt", "77")]
    (finding,) = examine(rewrite(healthy, tmp_path / "bad", with_logits(lambda z: z), members=members))
    assert "checkpoints of the same hash: a = c" in finding.evidence


def test_the_same_case_twice(healthy, tmp_path):
    writer = OutputWriter(tmp_path / "bad", "toy", healthy.manifest.class_names, 2, healthy.manifest.members, None, 255)
    for name, source in (("a", "case-00"), ("b", "case-01"), ("c", "case-00")):
        writer.write(name, healthy[source].logits, healthy[source].target)
    writer.finish()
    (finding,) = examine(writer.path)
    assert (finding.name, finding.severity, finding.cases) == ("duplicate_cases", "warning", ("c",))


def test_an_image_of_the_pool_set_among_those_of_training(healthy, tmp_path):
    for folder, files in (("pool", {"x.png": b"1", "y.png": b"2"}), ("train", {"p.png": b"3", "q.png": b"2"})):
        (tmp_path / folder).mkdir()
        for name, content in files.items():
            (tmp_path / folder / name).write_bytes(content)
    pool, training = (hash_folder(tmp_path / folder) for folder in ("pool", "train"))
    (finding,) = examine(healthy, pool_images=pool, training_images=training)
    assert (finding.name, finding.severity) == ("training_leak", "error")
    assert "1 of 2 images" in finding.evidence
    assert f"{tmp_path / 'pool' / 'y.png'} is {tmp_path / 'train' / 'q.png'}" in finding.evidence
    record_images(healthy.path, {"case-00": [tmp_path / "pool" / "y.png"]}, [tmp_path / "train" / "q.png"])
    assert names(examine(healthy.path)) == ["training_leak"]
    record_images(healthy.path, {"case-00": [tmp_path / "pool" / "x.png"]}, [tmp_path / "train" / "q.png"])
    assert examine(healthy.path) == []
    with pytest.raises(StoreError, match="holds no images"):
        hash_folder(tmp_path / "absent")


def test_prediction_remembers_the_images_of_all_parts(healthy):
    one = {name: {name: {"images": [name]}} for name in "abc"}
    remember_images(healthy.path, one["a"], one["b"] | one["c"])
    assert examine(healthy) == []
    remember_images(healthy.path, one["a"], one["b"] | {"copy of a": {"images": ["a"]}})
    assert names(examine(healthy)) == ["training_leak"]
    (healthy.path / IMAGES).unlink()
    remember_images(healthy.path, {"made up": {}}, {"made up, too": {}})
    assert not (healthy.path / IMAGES).exists()


def test_what_members_beside_the_store_say_of_their_training_counts(healthy):
    name, case_id = healthy.manifest.members[0].name, healthy.case_ids[0]
    path = healthy.path.parent / "members" / name / "cases.json"
    write_json(path, {"train": {"other": {}}, "val": {}})
    assert examine(healthy) == []
    write_json(path, {"train": {"other": {}}, "val": {case_id: {}}})
    (found,) = examine(healthy)
    assert (found.name, found.severity) == ("training_leak", "error")
    assert case_id in found.evidence


def test_packing_does_not_change_the_hash_of_an_image(tmp_path):
    for name, date in (("a.nii.gz", 1), ("b.nii.gz", 2)):
        with gzip.GzipFile(tmp_path / name, "wb", mtime=date) as file:
            file.write(b"voxels")
    assert (tmp_path / "a.nii.gz").read_bytes() != (tmp_path / "b.nii.gz").read_bytes()
    assert image_hash(tmp_path / "a.nii.gz") == image_hash(tmp_path / "b.nii.gz")


def test_the_sample_is_fixed_by_the_seed(healthy):
    case = healthy["case-03"]
    first, second, other = (take_sample(case, 128, seed) for seed in (0, 0, 1))
    assert torch.equal(first.index, second.index)
    assert not torch.equal(first.index, other.index)
    assert len(first.index) == 128
    assert torch.equal(first.scores, case.logits.flatten(2)[..., first.index])
    assert torch.equal(first.target, case.target.flatten()[first.index])


def test_findings_are_json_and_errors_come_first(healthy, tmp_path):
    bad = rewrite(healthy, tmp_path / "bad", with_logits(lambda z: one_hot_fill(z)[[0, 0, 1]]))
    found = examine(bad)
    assert names(found) == ["identical_members", "constant_region"]
    assert has_errors(found)
    assert json.loads(json.dumps([each.describe() for each in found]))[1]["cases"] == list(bad.case_ids)
    assert "remedy: " in str(found[0])


def test_an_examination_reads_a_part_of_large_cases(tmp_path):
    generator = torch.Generator().manual_seed(0)
    target = blocky_target((64, 128, 128), 4, generator)
    writer = OutputWriter(tmp_path, "toy", list("abcd"), 3, [Member("0")])
    writer.write("a", member_logits(target, 4, 1, generator), target)
    writer.finish()
    store = OutputStore(tmp_path)
    started = time.process_time()
    assert examine(store) == []
    assert time.process_time() - started < 1.0  # all 4.2 million scores take longer


def test_bad_options_are_refused(healthy):
    with pytest.raises(ValueError, match="voxels = 0"):
        examine(healthy, voxels=0)
    (healthy.path / "images.json").write_text("[]")
    with pytest.raises(StoreError, match=r"images\.json"):
        examine(healthy)
