"""The data module over stored outputs: partitions, batches, caches, what lies outside."""

import json
import pickle
from itertools import combinations
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lightning_calib.datasets.sampling import SampleKey
from lightning_calib.outputs.cache import FOLDER, CaseCache
from lightning_calib.outputs.fit_batches import ImageBatches, StepSampler, VoxelBatches
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.partition import Split, make_split
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from tests.stores import with_changed, write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("stored") / "outputs")


class Ids:
    """All that a partition needs of a store."""

    def __init__(self, count, per_group=1):
        self.case_ids = tuple(f"c{i:03d}" for i in range(count))
        self.groups = {name: f"g{i // per_group}" for i, name in enumerate(self.case_ids)}
        self.path = "outputs"


@given(
    count=st.integers(3, 60),
    cal=st.integers(1, 20),
    val=st.integers(0, 20),
    repeat=st.integers(0, 5),
    seed=st.integers(0, 2**31),
)
def test_parts_are_disjoint_complete_and_of_the_asked_size(count, cal, val, repeat, seed):
    if cal + val > count:
        return
    ids = Ids(count)
    split = make_split(ids, repeat, (cal, val, None), seed)
    assert (len(split.cal), len(split.val)) == (cal, val)
    assert sorted(split.cal + split.val + split.test) == list(ids.case_ids)
    assert split == make_split(ids, repeat, (cal, val, None), seed)


def test_repeats_and_seeds_differ():
    ids = Ids(40)
    splits = [make_split(ids, repeat, (10, 10, 20), seed) for repeat in range(3) for seed in range(3)]
    assert all(a.test != b.test for a, b in combinations(splits, 2))


def test_a_smaller_cal_is_a_subset_judged_on_the_same_cases():
    ids = Ids(40)
    large, small = (make_split(ids, 1, (size, 10, 15), 7) for size in (15, 5))
    assert set(small.cal) < set(large.cal)
    assert (small.val, small.test) == (large.val, large.test)


@given(count=st.integers(9, 60), per_group=st.integers(1, 3), seed=st.integers(0, 1000))
def test_groups_stay_together(count, per_group, seed):
    ids = Ids(count, per_group)
    split = make_split(ids, 0, (0.4, 0.2, 0.4), seed, groups=ids.groups)
    parts = [{ids.groups[i] for i in part} for part in (split.cal, split.val, split.test)]
    assert all(not a & b for a, b in combinations(parts, 2))
    assert all(parts)
    assert len(split.cal + split.val + split.test) == count


def test_torn_groups_are_refused():
    ids = Ids(4, per_group=2)
    with pytest.raises(ValueError, match="group 'g0' has cases in cal and in val"):
        Split(("c000",), ("c001",), ("c002", "c003")).check_groups(ids.groups)
    with pytest.raises(ValueError, match="case 'c000' is in cal and in test"):
        Split(("c000",), ("c001",), ("c000",))


def test_lists_files_and_shares(tmp_path):
    ids = Ids(10)
    listed = tmp_path / "cal.txt"
    listed.write_text("c001\n# a comment\nc004\n")
    split = make_split(ids, 0, (str(listed), ["c000"], None))
    assert (split.cal, split.val) == (("c001", "c004"), ("c000",))
    assert len(split.test) == 7
    shares = make_split(ids, 0, (0.25, 0.25, 0.5))
    assert len(shares.cal + shares.val + shares.test) == 10
    path = tmp_path / "split.json"
    split.save(path)
    assert Split.load(path) == split
    assert json.loads(path.read_text())["val"] == ["c000"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 3, 2), r"cal 8 \+ val 3 \+ test 2 = 13 cases, but the store outputs has 10"),
        ((None, None, 3), "cal and val are both to get the rest"),
        ((1.5, 1, 1), "a share lies between 0 and 1"),
        ((-1, 1, 1), "fewer than 0"),
        ((["x"], 1, 1), "x is no case of outputs"),
        (("none.txt", 1, 1), "neither a number"),
        ((0, 1, 1), "no case is left for cal"),
        ((["c001", "c001"], 1, 1), "listed twice"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        make_split(Ids(10), 0, sizes)


def test_too_few_cases_are_told_so():
    with pytest.raises(ValueError, match="with 2 cases; add cases: it takes three, one for each part"):
        make_split(Ids(2), 0, (0.5, 0.2, None))


def test_batches_hold_pooled_logits_and_mark_what_does_not_count(store):
    data = StoredOutputsDataModule(store, pooling="z", cal=4, val=2)
    batch = next(iter(data.train_dataloader()))
    case = store[batch["case_id"][0]]
    torch.testing.assert_close(batch["logits"], case.logits.float().mean(0)[None])
    assert torch.equal(batch["target"][0], case.target)
    assert [len(data.train_dataloader()), len(data.val_dataloader()), len(data.test_dataloader())] == [4, 2, 3]
    assert next(iter(data.test_dataloader()))["distance"].shape == batch["target"].shape
    stream = data.batches("cal")
    assert [names[0] for _, _, names in stream] == [names[0] for _, _, names in stream] == list(data.ids("cal"))


def test_outside_of_the_prediction(tmp_path):
    store = write_store(tmp_path / "o", num_classes=5, background=2, valid=True, ignore_index=None, shape=(8, 8))
    case = store["case-00"]
    logits, target = StoredCases(store, "z").read("case-00")
    assert (target[:2] == -1).all()
    assert torch.equal(target[2:], case.target[2:])
    hot, labels = StoredCases(store, "p", "one_hot_logits").read("case-00")
    torch.testing.assert_close(hot[:, :2].softmax(0).amax(0), torch.full((2, 8), 0.40460968))
    assert torch.equal(labels, case.target)
    certain, _ = StoredCases(store, "z", "background_certain").read("case-00")
    assert (certain[:, :2].softmax(0)[2] == 1).all()
    assert torch.equal(certain[:, 2:], logits[:, 2:])


def test_outside_needs_a_background(store):
    with pytest.raises(ValueError, match="needs a background class"):
        StoredCases(store, "z", "one_hot_logits")


def test_cache_is_written_once_and_tied_to_the_case(tmp_path, monkeypatch):
    store = write_store(tmp_path / "o", cases=3)
    cases = StoredCases(store, "p")
    first = cases.read("case-00")[0].clone()
    path = store.path / FOLDER / "p" / "case-00.safetensors"
    torch.testing.assert_close(load_file(path)["map"], store["case-00"].pooled("p"), rtol=0, atol=0)
    monkeypatch.setattr("lightning_calib.outputs.store.pool", lambda *_: pytest.fail("computed again"))
    assert torch.equal(StoredCases(store, "p").read("case-00")[0], first)
    monkeypatch.undo()
    save_file({"map": torch.zeros_like(first)}, path, metadata={"sha256": "of another case"})
    assert torch.equal(StoredCases(store, "p").read("case-00")[0], first)
    path.write_bytes(b"damaged")
    assert torch.equal(StoredCases(store, "p").read("case-00")[0], first)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])  # one bit
    assert torch.equal(StoredCases(store, "p").read("case-00")[0], first)
    assert torch.equal(load_file(path)["map"], first)
    assert [p.name for p in path.parent.iterdir()] == ["case-00.safetensors"]


def test_cache_can_be_off(tmp_path):
    store = write_store(tmp_path / "o", cases=3)
    StoredCases(store, "p", cache=False).distance("case-00")
    assert not (store.path / FOLDER).exists()


def test_cache_that_cannot_be_written_is_done_without(tmp_path):
    store = write_store(tmp_path / "o", cases=3)
    (store.path / FOLDER).write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot keep pooled maps"):
        logits, _ = StoredCases(store, "p").read("case-00")
    torch.testing.assert_close(logits, store["case-00"].pooled("p"))


def test_distance_is_that_of_the_full_target(tmp_path):
    store = write_store(tmp_path / "o", cases=1, valid=True, ignore_index=None, shape=(6, 7))
    target = store["case-00"].target.numpy()
    edge = np.zeros(target.shape, bool)
    for i, j in np.ndindex(target.shape):
        for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            if 0 <= i + di < 6 and 0 <= j + dj < 7 and target[i + di, j + dj] != target[i, j]:
                edge[i, j] = True
    places = np.argwhere(edge)
    slow = [[np.sqrt(((places - (i, j)) ** 2).sum(1)).min() for j in range(7)] for i in range(6)]
    for _ in range(2):  # computed, then read
        np.testing.assert_allclose(StoredCases(store).distance("case-00").numpy(), slow, atol=1e-5)


def test_a_full_disk_is_done_without(tmp_path, monkeypatch):
    store = write_store(tmp_path / "o", cases=2)
    full = SafetensorError("I/O error: No space left on device (os error 28)")
    monkeypatch.setattr("lightning_calib.kit.tensors.save_file", Mock(side_effect=full))
    cases = StoredCases(store, "p")
    with pytest.warns(UserWarning, match=r"cannot keep pooled maps.*No space left"):
        torch.testing.assert_close(cases.read("case-00")[0], store["case-00"].pooled("p"))
    assert not list((store.path / FOLDER).rglob("*case*"))


def test_a_changed_case_is_refused_where_it_is_read(tmp_path):
    store = write_store(tmp_path / "o", cases=2)
    path = store["case-01"].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    store = OutputStore(store.path)  # sizes and headers are right
    for read in (lambda case: case.target, lambda case: case.logits, lambda case: case.pooled("p")):
        with pytest.raises(StoreError, match=r"case-01.*does not have the content"):
            read(store["case-01"])


def spoil(store, case_id, change):
    """The store after a case's scores were changed behind the writer's back, leaving their size."""
    return with_changed(store, lambda each, arrays: change(arrays["logits"]) if each == case_id else None)


@pytest.mark.parametrize("pooling", ["p", "p0"])
def test_nan_is_named(tmp_path, pooling):
    store = write_store(tmp_path / "o", cases=2)
    store = spoil(store, "case-01", lambda logits: logits[0, 0, 0].fill_(torch.nan))
    with pytest.raises(StoreError, match=r"case-01.*NaN or infinite"):
        StoredCases(store, pooling).read("case-01")


@pytest.mark.parametrize("pooling", ["z", "p0"])
def test_constant_regions_are_warned_about_every_time(tmp_path, pooling):
    store = write_store(tmp_path / "o", cases=2)
    store = spoil(store, "case-01", lambda logits: logits[..., :8, :].fill_(0))
    for _ in range(2):  # computed, then read from the cache
        cases = StoredCases(store, pooling)
        with pytest.warns(UserWarning, match=r"case case-01: 48% of the predicted voxels"):
            cases.read("case-01")
        cases.read("case-01")  # and once only for each reader
    StoredCases(store, pooling).read("case-00")


def test_a_store_without_labels_is_refused(tmp_path):
    store = with_changed(write_store(tmp_path / "o", cases=4), lambda _, arrays: arrays["target"].fill_(255))
    with pytest.raises(ValueError, match=r"all voxels of the 2 cases of cal are ignored \(label 255\)"):
        StoredOutputsDataModule(store, cal=2, val=1)


def epoch_of(batches, epoch):
    return [batches[SampleKey(epoch, 0, step)] for step in range(len(batches))]


@pytest.mark.parametrize("memory", [2**29, 3 * 16 * 20 * 24])
def test_voxel_batches_show_every_voxel_once(store, memory):
    cases = StoredCases(store, "z")
    ids = store.case_ids[:5]
    batches = VoxelBatches(cases, ids, batch_voxels=200, memory=memory)
    assert (len(batches.windows) > 1) == (memory < 2**20)
    expected = torch.cat([cases.read(i)[0].flatten(1)[:, cases.counted(i)] for i in ids], dim=1)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    for epoch in (first, second):
        seen = torch.cat([batch["logits"][0] for batch in epoch], dim=1)
        assert torch.equal(seen.sort(dim=1).values, expected.sort(dim=1).values)
        assert max(batch["target"].numel() for batch in epoch) <= 200
        assert all((batch["target"] != 255).all() for batch in epoch)
    assert not torch.equal(first[0]["logits"], second[0]["logits"])
    again = epoch_of(VoxelBatches(cases, ids, batch_voxels=200, memory=memory), 1)
    assert all(torch.equal(a["logits"], b["logits"]) for a, b in zip(second, again, strict=True))


def test_processes_share_a_batch_without_repeats(store, monkeypatch):
    cases = StoredCases(store, "z")
    whole = VoxelBatches(cases, store.case_ids, batch_voxels=333)
    images = ImageBatches(cases, store.case_ids, batch_images=4, crop=(8, 8))
    alone = [epoch_of(whole, 2), epoch_of(images, 2)]
    shares = []
    for rank in range(3):
        monkeypatch.setattr("lightning_calib.outputs.fit_batches.world", lambda rank=rank: (rank, 3))
        shares.append([epoch_of(whole, 2), epoch_of(images, 2)])
    for kind in (0, 1):
        for step, batch in enumerate(alone[kind]):
            parts = torch.cat(
                [share[kind][step]["target"].flatten() for share in shares if share[kind][step]["target"].numel()]
            )
            assert torch.equal(parts.sort().values, batch["target"].flatten().sort().values)
    assert shares[1][1][2]["logits"].shape[0] == 0  # 9 images: the third batch has one


def test_processes_take_equally_many_steps_over_uneven_cases(store, monkeypatch):
    data = StoredOutputsDataModule(store, pooling="z", cal=5, val=2)
    seen = []
    for rank in range(3):
        monkeypatch.setattr("lightning_calib.outputs.fit_batches.world", lambda rank=rank: (rank, 3))
        batches = list(data.train_dataloader())
        assert len(batches) == 2
        seen += [name for batch in batches for name in batch["case_id"]]
    assert batches[1]["logits"].shape[0] == 0
    assert sorted(seen) == list(data.ids("cal"))


def test_crops_stay_inside_and_whole_images_stay_whole(store):
    cases = StoredCases(store, "z")
    crops = epoch_of(ImageBatches(cases, store.case_ids, batch_images=2, crop=(8, 64)), 0)
    assert {batch["logits"].shape[2:] for batch in crops} == {(8, 20)}
    whole = epoch_of(ImageBatches(cases, store.case_ids, batch_images=1), 0)
    assert sorted(batch["case_id"][0] for batch in whole) == list(store.case_ids)
    with pytest.raises(ValueError, match="give 2 sizes"):
        ImageBatches(cases, store.case_ids, crop=(8,))


def test_step_sampler_follows_the_epoch():
    sampler = StepSampler(2)
    sampler.set_epoch(3)
    assert [key.epoch for key in sampler] == [3, 3]


def test_memory_does_not_grow_with_the_store(store):
    cache = CaseCache(store)
    kept = [cache.pooled(case_id, "z") for case_id in store.case_ids]  # computed
    mapped = [cache.pooled(case_id, "z") for case_id in store.case_ids]
    maps = Path("/proc/self/maps").read_text()
    assert str(store.path / FOLDER / "z" / "case-00.safetensors") in maps, "pooled maps are copied, not mapped"
    assert all(torch.equal(a, b) for a, b in zip(kept, mapped, strict=True))


def test_a_listed_part_stays_as_listed_beside_shares(tmp_path):
    store = write_store(tmp_path / "outputs", cases=7)
    listed = list(store.case_ids[1:3])
    split = make_split(store, sizes=(0.5, 0.5, listed))
    assert list(split.test) == listed
    assert not {*split.cal, *split.val} & set(listed)


def test_a_spawned_process_gets_the_same_data(tmp_path):
    store = write_store(tmp_path / "outputs", cases=8)
    data = StoredOutputsDataModule(store, pooling="z", cal=3, val=2, train_batches="voxels", batch_voxels=64)
    data.train_dataloader().dataset[SampleKey(0, 0, 0)]  # what was read in this process does not matter
    copy = pickle.loads(pickle.dumps(data))
    assert copy.split == data.split
    for part in ("train", "val", "test"):
        ours, theirs = (getattr(each, f"{part}_dataloader")() for each in (data, copy))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one["logits"], other["logits"])
            assert torch.equal(one["target"], other["target"])
