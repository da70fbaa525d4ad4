"""Features that stored cases hand out: what they are made of, where they are kept, which batches hold them."""

import pytest
import torch

from lightning_calib.datasets.sampling import SampleKey
from lightning_calib.functional.features import FEATURES, NEED_MEMBERS, make_features
from lightning_calib.functional.pooling import pool
from lightning_calib.outputs.cache import CaseCache
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import CaseStream, StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from tests.stores import write_store

NAMES = ("votes", "entropy_3", "case_entropy")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("stored") / "outputs", members=3)


def made(case, names, pooling, members=3):
    scores = case.logits[None, :members]
    return make_features(names, pool(scores, pooling), scores)[0]


@pytest.mark.parametrize("pooling", ["z", "p", "p0"])
def test_features_are_made_once_and_kept(store, pooling, monkeypatch):
    case, cases = store["case-03"], StoredCases(store, pooling)
    found = cases.features("case-03", list(FEATURES))
    assert torch.equal(found, made(case, list(FEATURES), pooling))
    assert (store.path / "cache" / f"features-{pooling}-2" / "case-03.safetensors").is_file()
    monkeypatch.setattr("lightning_calib.outputs.cache.make_features", None)  # nothing is made again
    assert torch.equal(StoredCases(store, pooling).features("case-03", NAMES), made(case, NAMES, pooling))
    assert CaseCache(store).missing(f"features-{pooling}", ["case-03", "case-04"]) == ["case-04"]


def test_fewer_members_have_features_of_their_own(store):
    StoredCases(store).features("case-00", NAMES)
    fewer = StoredCases(OutputStore(store.path, members=2))
    assert torch.equal(fewer.features("case-00", NAMES), made(store["case-00"], NAMES, "p", members=2))


def test_nothing_is_asked_for_and_nothing_comes(store):
    cases = StoredCases(store)
    assert cases.features("case-00", ()) is None
    assert len(next(iter(CaseStream(cases, ["case-00"])))) == 3
    data = StoredOutputsDataModule(store, cal=2, val=2)
    assert "features" not in next(iter(data.val_dataloader()))


def test_without_a_cache_nothing_is_written(tmp_path):
    store = write_store(tmp_path / "outputs", cases=2)
    found = StoredCases(store, cache=False).features("case-00", NAMES)
    assert torch.equal(found, made(store["case-00"], NAMES, "p"))
    assert not (tmp_path / "outputs" / "cache").exists()


def test_what_lies_outside_is_filled_in_all_members(tmp_path):
    store = write_store(tmp_path / "outputs", cases=1, valid=True, background=0)
    names = ["entropy", "disagreement", "votes"]
    excluded = StoredCases(store).features("case-00", names)
    filled = StoredCases(store, outside="background_certain").features("case-00", names)
    valid = store["case-00"].valid
    assert float(filled[:, ~valid].max()) < 1e-9
    assert torch.equal(filled[:, valid], excluded[:, valid])


@pytest.mark.parametrize("kind", ["cases", "voxels", "images"])
def test_batches_hold_the_features_of_their_voxels(store, kind):
    data = StoredOutputsDataModule(store, cal=3, val=2, train_batches=kind, crop=[8, 8] if kind == "images" else None)
    data.feature_names = NAMES
    batch = data.train_dataloader().dataset[SampleKey(0, 0, 0)]
    assert batch["features"].shape == (len(batch["logits"]), 3, *batch["logits"].shape[2:])
    columns = torch.cat([batch["logits"], batch["features"]], dim=1).movedim(1, -1).flatten(0, -2)
    known = torch.cat(
        [torch.cat([data.cases.pooled(i), data.cases.features(i, NAMES)]).flatten(1).T for i in data.ids("cal")]
    )
    for row in columns[::17]:
        assert bool((known == row).all(dim=1).any())


def test_loaders_and_streams_hold_them_too(store):
    data = StoredOutputsDataModule(store, cal=3, val=2)
    data.feature_names = NAMES
    for loader, part in ((data.val_dataloader(), "val"), (data.test_dataloader(), "test")):
        for batch, (_, _, (case_id,), features) in zip(loader, data.batches(part), strict=True):
            assert batch["case_id"] == [case_id]
            assert torch.equal(batch["features"], features)
            assert torch.equal(features[0], data.cases.features(case_id, NAMES))


def test_a_store_of_pooled_maps_has_those_of_the_pooled_map_alone(tmp_path):
    cases = StoredCases(write_store(tmp_path / "outputs", cases=1, keep="pooled"), "z")
    allowed = [name for name in FEATURES if name not in NEED_MEMBERS]
    expected = make_features(allowed, cases.pooled("case-00")[None])[0]
    assert torch.equal(cases.features("case-00", allowed), expected)
    with pytest.raises(
        StoreError, match=r"keeps pooled maps alone, but votes need the members' scores.*use fts_pooled"
    ):
        cases.features("case-00", ["entropy", "votes"])
    with pytest.raises(ValueError, match="unknown features doubt"):
        cases.features("case-00", ["doubt"])
